// A client for Go without dependencies, written from docs/binary-protocol.md.
package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

const (
	opHello, opWelcome, opOpen, opOpened, opPublish, opPublished    = 1, 2, 3, 4, 5, 6
	opSubscribe, opSubscribed, opUnsubscribe, opPing, opPong        = 7, 8, 9, 10, 11
	opError, opChunk, opCredit, opEnded, opClose                    = 12, 13, 14, 15, 16
	opConsume, opConsumed, opGet, opGot                             = 26, 27, 28, 29
	creditBytes, envelopeMaxBytes, reconnectsMax, messagesPerStream = 1 << 20, 1 << 27, 100, 4096
)

var errLost = errors.New("the connection was lost")

// BrokerError is a refusal by the broker.
type BrokerError struct{ Code, Text string }

func (e *BrokerError) Error() string { return e.Code + ": " + e.Text }

// Message is one message of a stream.
type Message struct {
	Seq, Epoch, nbytes int
	Headers            Map
	Payload            []byte
}

type outcome struct {
	body  []byte
	table Map
	err   error
}

type key struct{ op, id int }

// Subscription has its messages in C, which is closed at the end; Err says why then, nil for a plain end.
type Subscription struct {
	C      chan Message
	Err    error
	id     int
	stream string
	place  []any
	live   bool
	done   chan struct{} // closed when nobody takes messages any more
}

// Client is a connection to a broker, which is made again when it is lost. Goroutines may share it.
type Client struct {
	address       string
	mutex         sync.Mutex // of all below
	conn          net.Conn
	lastID        int
	closed        bool
	handles       map[string]int
	waiting       map[key]chan outcome
	subscriptions map[int]*Subscription
}

// Connect returns a client of the broker at HOST:PORT.
func Connect(address string) (*Client, error) {
	c := &Client{address: address, waiting: map[key]chan outcome{}, subscriptions: map[int]*Subscription{}}
	conn, err := c.dial()
	if err == nil {
		go c.run(conn)
	}
	return c, err
}

// dial returns a connection that the broker has greeted, with its subscriptions begun again.
func (c *Client) dial() (net.Conn, error) {
	conn, err := net.Dial("tcp", c.address)
	if err != nil {
		return nil, err
	}
	hello := Map{"version": 1, "features": []any{"consumers"}, "client": "example-go/1"}
	_, err = conn.Write(envelope(opHello, pack(nil, hello)))
	op, body, err := receive(conn, err)
	if err == nil && op != opWelcome {
		err = brokerError(unpack(body).(Map))
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.conn, c.handles = conn, map[string]int{}
	for _, each := range c.subscriptions {
		c.begin(each)
	}
	return conn, nil
}

func (c *Client) run(conn net.Conn) {
	for tries := 0; tries < reconnectsMax; tries++ {
		if conn != nil {
			c.read(conn)
			tries = 0
		}
		c.mutex.Lock()
		for _, each := range c.waiting {
			each <- outcome{err: errLost}
		}
		c.waiting, c.conn = map[key]chan outcome{}, nil
		closed := c.closed
		c.mutex.Unlock()
		if closed {
			break
		}
		time.Sleep(100 * time.Millisecond)
		conn, _ = c.dial()
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for id := range c.subscriptions {
		c.end(id, errLost)
	}
}

func (c *Client) read(conn net.Conn) {
	defer conn.Close()
	defer func() { recover() }() // a peer that sends something else than the protocol is as good as gone
	input := bufio.NewReaderSize(conn, 1<<18)
	for {
		op, body, err := receive(input, nil)
		if err != nil {
			return
		}
		c.take(op, body)
	}
}

func receive(input io.Reader, err error) (int, []byte, error) {
	head := make([]byte, 5)
	if err == nil {
		_, err = io.ReadFull(input, head)
	}
	size := binary.LittleEndian.Uint32(head[1:])
	if err == nil && size > envelopeMaxBytes {
		err = fmt.Errorf("an envelope of %d bytes", size)
	}
	if err != nil {
		return 0, nil, err
	}
	body := make([]byte, size)
	_, err = io.ReadFull(input, body)
	return int(head[0]), body, err
}

func envelope(op int, body []byte) []byte {
	return append(binary.LittleEndian.AppendUint32([]byte{byte(op)}, uint32(len(body))), body...)
}

func brokerError(table Map) error {
	return &BrokerError{table["code"].(string), table["text"].(string)}
}

func (c *Client) take(op int, body []byte) {
	if op == opChunk {
		c.deliver(int(binary.LittleEndian.Uint32(body)), body[4:])
		return
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	switch op {
	case opPublished:
		c.answer(opPublish, int(binary.LittleEndian.Uint32(body)), outcome{body: body})
		return
	case opGot:
		c.answer(opGet, int(binary.LittleEndian.Uint32(body)), outcome{body: body})
		return
	case opPing:
		c.send(opPong, nil)
		return
	case opPong:
		return
	}
	table := unpack(body).(Map)
	id, _ := table["id"].(int)
	switch op {
	case opOpened:
		c.answer(opOpen, id, outcome{})
	case opConsumed:
		c.answer(opConsume, id, outcome{table: table})
	case opSubscribed:
		if found := c.subscriptions[id]; found != nil {
			found.place = []any{"seq", table["next_seq"]}
		}
	case opEnded:
		if code, _ := table["code"].(string); code != "" {
			c.end(id, brokerError(table))
		} else {
			c.end(id, nil)
		}
	case opError:
		of := table["op"].(int)
		if of == opSubscribe && table["code"] != "trimmed" {
			c.end(id, brokerError(table))
		}
		c.answer(of, id, outcome{err: brokerError(table)})
	}
}

func (c *Client) answer(op, id int, found outcome) {
	if waiting := c.waiting[key{op, id}]; waiting != nil {
		waiting <- found
		delete(c.waiting, key{op, id})
	}
}

// deliver waits while the program is behind by messagesPerStream: credit bounds the bytes.
func (c *Client) deliver(id int, data []byte) {
	c.mutex.Lock()
	found := c.subscriptions[id]
	c.mutex.Unlock()
	if found == nil {
		return
	}
	for _, each := range frames(data) {
		select {
		case found.C <- each:
		case <-found.done:
			return
		}
		c.mutex.Lock()
		found.place = []any{"seq", each.Seq + 1}
		c.mutex.Unlock()
	}
}

func (c *Client) end(id int, err error) {
	if found := c.subscriptions[id]; found != nil {
		found.Err = err
		close(found.C)
		delete(c.subscriptions, id)
	}
}

func frames(data []byte) (found []Message) {
	little := binary.LittleEndian
	for len(data) > 0 {
		size, metadataEnd := int(little.Uint32(data)), 32+int(little.Uint16(data[30:]))
		headers := Map{}
		if metadataEnd > 32 {
			if own, ok := unpack(data[32:metadataEnd]).(Map)["h"].(Map); ok {
				headers = own
			}
		}
		found = append(found, Message{int(little.Uint64(data[8:])), int(little.Uint32(data[24:])), size, headers, data[metadataEnd:size]})
		data = data[size:]
	}
	return found
}

func (c *Client) send(op int, body []byte) error {
	if c.conn == nil {
		return errLost
	}
	_, err := c.conn.Write(envelope(op, body))
	return err
}

// ask sends a request and waits for its answer.
func (c *Client) ask(op, id int, body []byte) outcome {
	answer := make(chan outcome, 1)
	c.mutex.Lock()
	err := c.send(op, body)
	if err == nil {
		c.waiting[key{op, id}] = answer
	}
	c.mutex.Unlock()
	if err != nil {
		return outcome{err: err}
	}
	return <-answer
}

func (c *Client) nextID() int {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.lastID++
	return c.lastID
}

// ready waits for a connection while one is made again.
func (c *Client) ready() {
	for tries := 0; tries < reconnectsMax; tries++ {
		c.mutex.Lock()
		up := c.conn != nil || c.closed
		c.mutex.Unlock()
		if up {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func (c *Client) handle(stream string) (int, error) {
	c.mutex.Lock()
	id, there := c.handles[stream]
	c.mutex.Unlock()
	if there {
		return id, nil
	}
	id = c.nextID()
	if err := c.ask(opOpen, id, pack(nil, Map{"id": id, "stream": stream})).err; err != nil {
		return 0, err
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.handles[stream] = id
	return id, nil
}

// Publish returns the message's seq when it is where ack wants it; with ack 0 it returns at once, without a seq.
func (c *Client) Publish(stream string, payload []byte, headers Map, ack, replicas int) (int, error) {
	c.ready()
	handle, err := c.handle(stream)
	if err != nil {
		return 0, err
	}
	var metadata []byte
	if len(headers) > 0 {
		metadata = pack(nil, Map{"h": headers})
	}
	id, little := c.nextID(), binary.LittleEndian
	body := append(little.AppendUint32(nil, uint32(id)), byte(ack), byte(replicas), 1, 0)
	body = little.AppendUint32(body, uint32(handle))
	body = little.AppendUint32(body, uint32(32+len(metadata)+len(payload)))
	body = little.AppendUint16(append(body, make([]byte, 26)...), uint16(len(metadata)))
	body = append(append(body, metadata...), payload...)
	if ack == 0 {
		c.mutex.Lock()
		defer c.mutex.Unlock()
		return 0, c.send(opPublish, body)
	}
	found := c.ask(opPublish, id, body)
	if found.err != nil {
		return 0, found.err
	}
	return int(little.Uint64(found.body[4:])), nil
}

// Subscribe gives the messages from seq `from` on, with `live` those to come too.
func (c *Client) Subscribe(stream string, from int, live bool) *Subscription {
	c.ready()
	id := c.nextID()
	s := &Subscription{C: make(chan Message, messagesPerStream), id: id, stream: stream, live: live}
	s.place, s.done = []any{"seq", from}, make(chan struct{})
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.subscriptions[id] = s
	c.begin(s)
	return s
}

func (c *Client) begin(s *Subscription) {
	ask := Map{"id": s.id, "stream": s.stream, "from": s.place, "credit": creditBytes}
	if !s.live {
		ask["end"] = []any{"now", 0}
	}
	c.send(opSubscribe, pack(nil, ask))
}

// Taken lets the broker send as much as this message has taken.
func (c *Client) Taken(s *Subscription, m Message) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	body := binary.LittleEndian.AppendUint32(nil, uint32(s.id))
	c.send(opCredit, binary.LittleEndian.AppendUint64(body, uint64(m.nbytes)))
}

// Unsubscribe ends a subscription; C gets nothing more.
func (c *Client) Unsubscribe(s *Subscription) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	delete(c.subscriptions, s.id)
	close(s.done)
	c.send(opUnsubscribe, pack(nil, Map{"id": s.id}))
}

// Consume makes a durable consumer, unless there is one.
func (c *Client) Consume(stream, name string) error {
	c.ready()
	id := c.nextID()
	ask := Map{"id": id, "do": "create", "stream": stream, "name": name, "from": []any{"seq", 0}}
	return c.ask(opConsume, id, pack(nil, ask)).err
}

// Get reports the messages that are finished, and takes up to `limit` more.
func (c *Client) Get(stream, name, member string, finished []Message, limit int) ([]Message, error) {
	c.ready()
	id, rows := c.nextID(), []any{}
	for _, each := range finished {
		rows = append(rows, []any{each.Seq, each.Seq, each.Epoch})
	}
	ask := Map{"id": id, "stream": stream, "name": name, "member": member, "max_messages": limit, "finished": rows}
	found := c.ask(opGet, id, pack(nil, ask))
	if found.err != nil {
		return nil, found.err
	}
	runs, stale := binary.LittleEndian.Uint16(found.body[4:]), binary.LittleEndian.Uint16(found.body[6:])
	return frames(found.body[16+20*int(runs)+16*int(stale):]), nil
}

// Close ends the connection.
func (c *Client) Close() {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.closed = true
	c.send(opClose, nil)
}
