// A conversation by HiveMQ's client: see tests/system/test_mqtt_clients.py.

import com.hivemq.client.mqtt.MqttClient;
import com.hivemq.client.mqtt.MqttGlobalPublishFilter;
import com.hivemq.client.mqtt.datatypes.MqttQos;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.TimeUnit;

public class Conversation {
    static final int EACH = 20;

    public static void main(String[] args) throws Exception {
        int port = Integer.parseInt(args[0]);
        if (args[1].equals("5")) {
            version5(port, args[2]);
        } else {
            version3(port, args[2]);
        }
    }

    static void show(Object topic, MqttQos qos, byte[] payload) {
        System.out.println(topic + " " + qos.getCode() + " " + new String(payload, StandardCharsets.UTF_8));
    }

    static byte[] payload(int number) {
        return Integer.toString(number).getBytes(StandardCharsets.UTF_8);
    }

    static void version5(int port, String name) throws Exception {
        var client = MqttClient.builder().useMqttVersion5().identifier(name)
            .serverHost("127.0.0.1").serverPort(port).buildBlocking();
        client.connectWith().cleanStart(false).sessionExpiryInterval(60).send();
        try (var got = client.publishes(MqttGlobalPublishFilter.ALL)) {
            client.subscribeWith().topicFilter(name + "/#").qos(MqttQos.EXACTLY_ONCE).send();
            for (int number = 0; number < EACH; number++) {
                for (int qos = 0; qos < 3; qos++) {
                    client.publishWith().topic(name + "/" + qos).qos(MqttQos.fromCode(qos)).payload(payload(number))
                        .userProperties().add("k", "v").applyUserProperties().send();
                }
            }
            for (int number = 0; number < 3 * EACH; number++) {
                var message = got.receive(30, TimeUnit.SECONDS).orElseThrow();
                if (message.getUserProperties().asList().size() != 1) {
                    throw new IllegalStateException("the user property is missing");
                }
                show(message.getTopic(), message.getQos(), message.getPayloadAsBytes());
            }
        }
        client.disconnect();
    }

    static void version3(int port, String name) throws Exception {
        var client = MqttClient.builder().useMqttVersion3().identifier(name)
            .serverHost("127.0.0.1").serverPort(port).buildBlocking();
        client.connectWith().cleanSession(false).send();
        try (var got = client.publishes(MqttGlobalPublishFilter.ALL)) {
            client.subscribeWith().topicFilter(name + "/#").qos(MqttQos.EXACTLY_ONCE).send();
            for (int number = 0; number < EACH; number++) {
                for (int qos = 0; qos < 3; qos++) {
                    client.publishWith().topic(name + "/" + qos).qos(MqttQos.fromCode(qos)).payload(payload(number)).send();
                }
            }
            for (int number = 0; number < 3 * EACH; number++) {
                var message = got.receive(30, TimeUnit.SECONDS).orElseThrow();
                show(message.getTopic(), message.getQos(), message.getPayloadAsBytes());
            }
        }
        client.disconnect();
    }
}
