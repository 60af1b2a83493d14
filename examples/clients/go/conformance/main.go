// The program that `tailrace conformance` drives: a command as JSON on each line, and an answer on a line for each.
package main

import (
	"encoding/json"
	"errors"
	"os"

	tailrace "example.org/tailrace"
)

type object map[string]any

type command struct {
	Do, Address, Stream, Name, Member string
	Payload                           []byte
	Headers                           map[string]any
	Ack                               *byte
	Replicas                          byte
	From                              uint64
	Count, Max                        int
	Live                              bool
	Finished                          []tailrace.Message
}

func show(messages []tailrace.Message) object {
	shown := []object{}
	for _, each := range messages {
		headers := each.Headers
		if headers == nil {
			headers = object{}
		}
		payload := append([]byte{}, each.Payload...) // base64 in JSON, where nil would be null
		shown = append(shown, object{"seq": each.Seq, "epoch": each.Epoch, "headers": headers, "payload": payload})
	}
	return object{"messages": shown}
}

func read(client *tailrace.Client, ask command) (messages []tailrace.Message, err error) {
	for message, err := range client.Subscribe(ask.Stream, ask.From, ask.Live) {
		if err != nil {
			return nil, err
		}
		if messages = append(messages, message); len(messages) == ask.Count {
			break
		}
	}
	return messages, nil
}

func execute(client **tailrace.Client, ask command) (answer object, err error) {
	c, answer := *client, object{}
	var messages []tailrace.Message
	switch ask.Do {
	case "connect":
		*client, err = tailrace.Connect(ask.Address)
	case "publish":
		ack := byte(tailrace.Appended)
		if ask.Ack != nil {
			ack = *ask.Ack
		}
		answer["seq"], err = c.Publish(ask.Stream, ask.Payload, ask.Headers, ack, ask.Replicas)
	case "read":
		messages, err = read(c, ask)
		answer = show(messages)
	case "consume":
		err = c.Consume(ask.Stream, ask.Name)
	case "get":
		messages, err = c.Get(ask.Stream, ask.Name, ask.Member, ask.Finished, ask.Max, 0)
		answer = show(messages)
	case "close":
		c.Close()
	}
	return answer, err
}

func main() {
	input, output := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	var client *tailrace.Client
	for {
		var ask command
		if input.Decode(&ask) != nil {
			return
		}
		answer, err := execute(&client, ask)
		var refused *tailrace.BrokerError // also if the connection was lost
		if errors.As(err, &refused) {
			answer = object{"error": refused.Code, "text": refused.Text}
		} else if err != nil {
			answer = object{"error": "lost", "text": err.Error()}
		}
		output.Encode(answer)
	}
}
