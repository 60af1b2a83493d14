/* A conversation by paho-c: see tests/system/test_mqtt_clients.py. */

#include <MQTTClient.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EACH = 20, TIMEOUT_MS = 30000 };

static void must(int code, const char *what) {
    if (code != MQTTCLIENT_SUCCESS) {
        fprintf(stderr, "%s: %d\n", what, code);
        exit(1);
    }
}

int main(int count, char **args) {
    if (count != 4) return 2;
    int is_5 = strcmp(args[2], "5") == 0;
    char address[64], topic[128];
    snprintf(address, sizeof address, "tcp://127.0.0.1:%s", args[1]);
    MQTTClient client;
    MQTTClient_createOptions made = MQTTClient_createOptions_initializer;
    made.MQTTVersion = is_5 ? MQTTVERSION_5 : MQTTVERSION_3_1_1;
    must(MQTTClient_createWithOptions(&client, address, args[3], MQTTCLIENT_PERSISTENCE_NONE, NULL, &made), "create");
    MQTTClient_connectOptions options = MQTTClient_connectOptions_initializer;
    MQTTClient_connectOptions options_5 = MQTTClient_connectOptions_initializer5;
    if (is_5) {
        MQTTResponse response = MQTTClient_connect5(client, &options_5, NULL, NULL);
        must(response.reasonCode, "connect");
        MQTTResponse_free(response);
    } else {
        options.MQTTVersion = MQTTVERSION_3_1_1;
        must(MQTTClient_connect(client, &options), "connect");
    }
    snprintf(topic, sizeof topic, "%s/#", args[3]);
    if (is_5) {
        MQTTResponse response = MQTTClient_subscribe5(client, topic, 2, NULL, NULL);
        if (response.reasonCode != MQTTREASONCODE_GRANTED_QOS_2) must(response.reasonCode + 1, "subscribe");
        MQTTResponse_free(response);
    } else {
        must(MQTTClient_subscribe(client, topic, 2), "subscribe");
    }
    for (int number = 0; number < EACH; number++) {
        for (int qos = 0; qos < 3; qos++) {
            char payload[16];
            snprintf(topic, sizeof topic, "%s/%d", args[3], qos);
            int size = snprintf(payload, sizeof payload, "%d", number);
            MQTTClient_deliveryToken token;
            if (is_5) {
                MQTTResponse response = MQTTClient_publish5(client, topic, size, payload, qos, 0, NULL, &token);
                must(response.reasonCode, "publish");
                MQTTResponse_free(response);
            } else {
                must(MQTTClient_publish(client, topic, size, payload, qos, 0, &token), "publish");
            }
            if (qos) must(MQTTClient_waitForCompletion(client, token, TIMEOUT_MS), "acknowledgement");
        }
    }
    for (int number = 0; number < 3 * EACH; number++) {
        char *name = NULL;
        int length = 0;
        MQTTClient_message *message = NULL;
        int code = MQTTClient_receive(client, &name, &length, &message, TIMEOUT_MS);
        if (code == MQTTCLIENT_TOPICNAME_TRUNCATED) code = MQTTCLIENT_SUCCESS;
        must(code, "receive");
        if (message == NULL) must(1, "no message");
        printf("%.*s %d %.*s\n", length ? length : (int)strlen(name), name, message->qos, message->payloadlen,
               (char *)message->payload);
        MQTTClient_freeMessage(&message);
        MQTTClient_free(name);
    }
    if (is_5)
        must(MQTTClient_disconnect5(client, TIMEOUT_MS, MQTTREASONCODE_SUCCESS, NULL), "disconnect");
    else
        must(MQTTClient_disconnect(client, TIMEOUT_MS), "disconnect");
    MQTTClient_destroy(&client);
    return 0;
}
