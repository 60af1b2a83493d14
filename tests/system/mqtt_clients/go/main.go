// A conversation by eclipse/paho.golang: see tests/system/test_mqtt_clients.py.
package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/eclipse/paho.golang/paho"
)

const each = 20

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	port, name := os.Args[1], os.Args[3]
	conn, err := net.Dial("tcp", "127.0.0.1:"+port)
	must(err)
	got := make(chan *paho.Publish, 3*each)
	client := paho.NewClient(paho.ClientConfig{
		Conn: conn,
		OnPublishReceived: []func(paho.PublishReceived) (bool, error){
			func(received paho.PublishReceived) (bool, error) {
				got <- received.Packet
				return true, nil
			},
		},
	})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	expiry := uint32(60)
	_, err = client.Connect(ctx, &paho.Connect{
		ClientID: name, KeepAlive: 30, CleanStart: false,
		Properties: &paho.ConnectProperties{SessionExpiryInterval: &expiry},
	})
	must(err)
	_, err = client.Subscribe(ctx, &paho.Subscribe{
		Subscriptions: []paho.SubscribeOptions{{Topic: name + "/#", QoS: 2}},
	})
	must(err)
	for number := 0; number < each; number++ {
		for qos := 0; qos < 3; qos++ {
			_, err = client.Publish(ctx, &paho.Publish{
				Topic: fmt.Sprintf("%s/%d", name, qos), QoS: byte(qos), Payload: []byte(fmt.Sprint(number)),
				Properties: &paho.PublishProperties{User: paho.UserProperties{{Key: "k", Value: "v"}}},
			})
			must(err)
		}
	}
	for number := 0; number < 3*each; number++ {
		select {
		case message := <-got:
			if message.Properties.User.Get("k") != "v" {
				must(fmt.Errorf("the user property is missing"))
			}
			fmt.Println(message.Topic, message.QoS, string(message.Payload))
		case <-ctx.Done():
			must(ctx.Err())
		}
	}
	must(client.Disconnect(&paho.Disconnect{ReasonCode: 0}))
}
