// Package tailrace is a client of the broker in one file, written from docs/binary-protocol.md.
//
//	client, err := tailrace.Connect("127.0.0.1:5050")
//	seq, err := client.Publish("orders", []byte("one"), nil, tailrace.Appended, 0)
//	for message, err := range client.Subscribe("orders", 0, true) { ... }
package tailrace

import (
	"bufio"
	"encoding/binary"
	"io"
	"iter"
	"net"
	"sync"
	"time"

	"github.com/vmihailenco/msgpack/v5"
)

const (
	opHello, opOpen, opOpened, opPublish, opPublished, opSubscribe, opSubscribed = 1, 3, 4, 5, 6, 7, 8
	opUnsubscribe, opPing, opPong, opChunk, opCredit, opConsume, opGet, opGot    = 9, 10, 11, 13, 14, 26, 28, 29
	headBytes, bodyMaxBytes, creditBytes, dialsMax, dialWait                     = 32, 1 << 27, 1 << 18, 100, 1e8
)

// How far a message must have come before its publish is answered: anywhere, the log, the disk, other nodes.
const Sent, Appended, Synced, Replicated = 0, 1, 2, 3

// ErrLost means that the connection ended before the answer: the request may or may not have been done.
var ErrLost, le = &BrokerError{"lost", "the connection was lost"}, binary.LittleEndian

// BrokerError is a refusal by the broker.
type BrokerError struct{ Code, Text string }

func (e *BrokerError) Error() string { return e.Code + ": " + e.Text }

// Message is one message of a stream.
type Message struct {
	Seq     uint64         `msgpack:"-"`
	Epoch   uint32         `msgpack:"-"`
	Headers map[string]any `msgpack:"h"`
	Payload []byte         `msgpack:"-"`
}

// Client is a connection to a broker, which the next request makes again if it is lost. Goroutines may share it.
type Client struct {
	address string     // empty if closed
	handles sync.Map   // of the streams that are open on this connection
	mutex   sync.Mutex // of all below, and of sending
	socket  net.Conn
	lastID  uint32
	waiting map[uint32]chan answer // a request gets one, a subscription its chunks; nil without a connection
}

type answer struct {
	ID   uint32 `msgpack:"id"`
	Code string `msgpack:"code"`
	Text string `msgpack:"text"`
	body []byte // if it is no map
	err  error
}

type fields map[string]any

func (f fields) with(id uint32) []byte {
	f["id"] = id
	body, _ := msgpack.Marshal(f)
	return body
}

// Connect returns a client of the broker at HOST:PORT.
func Connect(address string) (*Client, error) {
	c := &Client{address: address}
	return c, (<-c.dial()).err
}

// Close ends the connection.
func (c *Client) Close() error {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.address = ""
	return c.socket.Close()
}

// Publish returns the message's seq when it is where ack wants it. Only Replicated needs a number of replicas.
func (c *Client) Publish(stream string, payload []byte, headers map[string]any, ack, replicas byte) (uint64, error) {
	var metadata []byte
	if len(headers) > 0 {
		metadata, _ = msgpack.Marshal(Message{Headers: headers}) // the headers alone, as its tags say
	}
	found := <-c.begin(opPublish, int(ack), func(id uint32) []byte {
		handle, isOpen := c.handles.LoadOrStore(stream, id)
		if !isOpen { // has the id of the publish, to which a refusal is the answer
			c.send(opOpen, fields{"stream": stream}.with(id))
		}
		body := le.AppendUint32(append(le.AppendUint32(nil, id), ack, replicas, 1, 0), handle.(uint32))
		body = le.AppendUint32(body, uint32(headBytes+len(metadata)+len(payload)))
		body = le.AppendUint16(append(body, make([]byte, headBytes-6)...), uint16(len(metadata)))
		return append(append(body, metadata...), payload...)
	})
	if found.err != nil || ack == Sent {
		c.handles.CompareAndDelete(stream, found.ID) // if it was opened just now
		return 0, found.err
	}
	return le.Uint64(found.body[4:]), nil
}

// Subscribe gives the messages from a seq on, with live those to come too, over any number of connections.
func (c *Client) Subscribe(stream string, from uint64, live bool) iter.Seq2[Message, error] {
	return func(yield func(Message, error) bool) {
		found := answer{err: ErrLost}
		for found.err == ErrLost {
			request := fields{"stream": stream, "from": []any{"seq", from}, "credit": creditBytes}
			if !live {
				request["end"] = []any{"now", 0}
			}
			answers := c.begin(opSubscribe, creditBytes/headBytes+2, request.with) // room for all that may come
			for found = <-answers; found.body != nil; found = <-answers {
				for _, message := range frames(found.body[4:]) {
					if !yield(message, nil) {
						c.begin(opUnsubscribe, 0, func(uint32) []byte { return fields{}.with(found.ID) })
						return
					}
					from = message.Seq + 1 // a new connection goes on there
				}
				credit := uint64(len(found.body) - 4)
				c.begin(opCredit, 0, func(uint32) []byte { return le.AppendUint64(found.body[:4:4], credit) })
			}
		}
		if found.err != nil {
			yield(Message{}, found.err)
		}
	}
}

// Consume makes a durable consumer of all messages, unless there is one.
func (c *Client) Consume(stream, name string) error {
	consumer := fields{"do": "create", "stream": stream, "name": name, "from": []any{"seq", 0}}
	return (<-c.begin(opConsume, 1, consumer.with)).err
}

// Get reports the messages that are finished, and takes up to max more, for which it waits.
func (c *Client) Get(stream, name, member string, finished []Message, max int, wait time.Duration) ([]Message, error) {
	ranges := [][]uint64{}
	for _, each := range finished {
		ranges = append(ranges, []uint64{each.Seq, each.Seq, uint64(each.Epoch)})
	}
	got := <-c.begin(opGet, 1, fields{"stream": stream, "name": name, "member": member, "finished": ranges,
		"max_messages": max, "wait_ms": wait.Milliseconds()}.with)
	if got.err != nil {
		return nil, got.err
	}
	return frames(got.body[16+20*int(le.Uint16(got.body[4:]))+16*int(le.Uint16(got.body[6:])):]), nil
}

// begin sends a request, over a new connection if need be; room is for how many answers may come at once.
func (c *Client) begin(op byte, room int, body func(id uint32) []byte) chan answer {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	answers := make(chan answer, room+1)
	for dials := 1; c.waiting == nil; dials++ {
		if welcome := c.dial(); c.waiting == nil && (c.address == "" || dials == dialsMax) {
			return welcome
		}
		time.Sleep(dialWait)
	}
	c.lastID++
	if room > 0 {
		c.waiting[c.lastID] = answers
	} else {
		close(answers)
	}
	c.send(op, body(c.lastID))
	return answers
}

func (c *Client) send(op byte, body []byte) {
	c.socket.Write(append(le.AppendUint32([]byte{op}, uint32(len(body))), body...)) // read meets its errors, too
}

func (c *Client) dial() chan answer {
	welcome := make(chan answer, 1)
	socket, err := net.Dial("tcp", c.address)
	if err != nil {
		welcome <- answer{err: err}
		return welcome
	}
	c.handles.Clear()
	c.socket, c.waiting = socket, map[uint32]chan answer{0: welcome}
	c.send(opHello, fields{"version": 1, "features": []string{"consumers"}, "client": "example-go/1"}.with(0))
	go c.read(socket)
	return welcome
}

func (c *Client) read(socket net.Conn) {
	input, head := bufio.NewReader(socket), make([]byte, 5)
	for {
		if _, err := io.ReadFull(input, head); err != nil || le.Uint32(head[1:]) > bodyMaxBytes {
			break
		}
		body := make([]byte, le.Uint32(head[1:]))
		if _, err := io.ReadFull(input, body); err != nil || c.take(head[0], body) != nil {
			break
		}
	}
	socket.Close()
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for _, answers := range c.waiting {
		answers <- answer{err: ErrLost}
	}
	c.waiting = nil
}

func (c *Client) take(op byte, body []byte) error {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	var found answer
	if op == opPing {
		c.send(opPong, nil)
	} else if op == opPublished || op == opGot || op == opChunk {
		found.ID, found.body = le.Uint32(body), body
	} else if err := msgpack.Unmarshal(body, &found); err != nil {
		return err
	}
	answers := c.waiting[found.ID]
	if answers == nil || op == opOpened || op == opSubscribed || found.Code == "trimmed" {
		return nil
	}
	if op != opChunk {
		delete(c.waiting, found.ID)
	}
	if found.Code != "" {
		found.err = &BrokerError{found.Code, found.Text}
	}
	answers <- found
	return nil
}

func frames(data []byte) (messages []Message) {
	for len(data) > 0 {
		size, start := le.Uint32(data), headBytes+uint32(le.Uint16(data[30:]))
		message := Message{Seq: le.Uint64(data[8:]), Epoch: le.Uint32(data[24:]), Payload: data[start:size]}
		msgpack.Unmarshal(data[headBytes:start], &message)
		messages, data = append(messages, message), data[size:]
	}
	return messages
}
