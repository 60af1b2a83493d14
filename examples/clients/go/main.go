package main

// For `tailrace conformance`: a command as JSON on each line, and an answer on a line for each.

import (
	"encoding/json"
	"errors"
	"os"
)

type shown struct {
	Seq     int    `json:"seq"`
	Epoch   int    `json:"epoch"`
	Headers Map    `json:"headers"`
	Payload []byte `json:"payload"` // encoding/json makes base64 of it, and of nothing null
}

type command struct {
	Do, Address, Stream, Name, Member string
	Payload                           []byte
	Headers                           Map
	Ack                               *int
	Replicas, From, Count, Max        int
	Live                              bool
	Finished                          []Message
}

func show(messages []Message) Map {
	found := []shown{}
	for _, each := range messages {
		found = append(found, shown{each.Seq, each.Epoch, each.Headers, append([]byte{}, each.Payload...)})
	}
	return Map{"messages": found}
}

func execute(client **Client, ask command) (Map, error) {
	c, answer := *client, Map{}
	var err error
	switch ask.Do {
	case "connect":
		*client, err = Connect(ask.Address)
	case "publish":
		ack := 1
		if ask.Ack != nil {
			ack = *ask.Ack
		}
		answer["seq"], err = c.Publish(ask.Stream, ask.Payload, ask.Headers, ack, ask.Replicas)
	case "read":
		found := []Message{}
		s := c.Subscribe(ask.Stream, ask.From, ask.Live)
		for each := range s.C {
			c.Taken(s, each)
			if found = append(found, each); len(found) == ask.Count {
				c.Unsubscribe(s)
				break
			}
		}
		answer, err = show(found), s.Err
	case "consume":
		err = c.Consume(ask.Stream, ask.Name)
	case "get":
		var found []Message
		found, err = c.Get(ask.Stream, ask.Name, ask.Member, ask.Finished, ask.Max)
		answer = show(found)
	case "close":
		c.Close()
	}
	return answer, err
}

func main() {
	input, output := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	var client *Client
	for {
		var ask command
		if input.Decode(&ask) != nil {
			return
		}
		answer, err := execute(&client, ask)
		var refused *BrokerError
		if errors.As(err, &refused) {
			answer = Map{"error": refused.Code, "text": refused.Text}
		} else if err != nil {
			answer = Map{"error": "lost", "text": err.Error()}
		}
		output.Encode(answer)
	}
}
