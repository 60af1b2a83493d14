package main

// As much of msgpack as the protocol uses: https://github.com/msgpack/msgpack/blob/master/spec.md

import (
	"encoding/binary"
	"fmt"
	"math"
	"sort"
)

// Map is a msgpack map; a nil value is left out.
type Map map[string]any

func pack(out []byte, value any) []byte {
	head := func(size int, fix byte, fixMax int, wide byte) {
		if size <= fixMax {
			out = append(out, fix|byte(size))
		} else {
			out = binary.BigEndian.AppendUint32(append(out, wide), uint32(size))
		}
	}
	switch item := value.(type) {
	case nil:
		return append(out, 0xc0)
	case bool:
		if item {
			return append(out, 0xc3)
		}
		return append(out, 0xc2)
	case int:
		return binary.BigEndian.AppendUint64(append(out, 0xcf), uint64(item))
	case string:
		head(len(item), 0xa0, 31, 0xdb)
		return append(out, item...)
	case []byte:
		head(len(item), 0, -1, 0xc6)
		return append(out, item...)
	case []any:
		head(len(item), 0x90, 15, 0xdd)
		for _, each := range item {
			out = pack(out, each)
		}
		return out
	case Map:
		names := make([]string, 0, len(item))
		for name, each := range item {
			if each != nil {
				names = append(names, name)
			}
		}
		sort.Strings(names)
		head(len(names), 0x80, 15, 0xdf)
		for _, name := range names {
			out = pack(pack(out, name), item[name])
		}
		return out
	}
	panic(fmt.Sprintf("msgpack: no form for %T", value))
}

type reader struct {
	data []byte
	at   int
}

// unpack panics on what is not msgpack; take in client.go ends the connection then.
func unpack(data []byte) any { return (&reader{data: data}).next() }

func (r *reader) bytes(size int) []byte {
	r.at += size
	return r.data[r.at-size : r.at]
}

func (r *reader) number(size int) int {
	found := 0
	for _, each := range r.bytes(size) {
		found = found<<8 | int(each)
	}
	return found
}

func (r *reader) list(size int) []any {
	found := make([]any, 0, min(size, len(r.data)))
	for ; size > 0; size-- {
		found = append(found, r.next())
	}
	return found
}

func (r *reader) table(size int) Map {
	found := Map{}
	for ; size > 0; size-- {
		name := r.next().(string)
		found[name] = r.next()
	}
	return found
}

func (r *reader) next() any {
	kind := r.number(1)
	switch {
	case kind < 0x80:
		return kind
	case kind < 0x90:
		return r.table(kind & 15)
	case kind < 0xa0:
		return r.list(kind & 15)
	case kind < 0xc0:
		return string(r.bytes(kind & 31))
	case kind >= 0xe0:
		return kind - 256
	case kind == 0xc0:
		return nil
	case kind == 0xc2 || kind == 0xc3:
		return kind == 0xc3
	case 0xc4 <= kind && kind <= 0xc6:
		return r.bytes(r.number(1 << (kind - 0xc4)))
	case kind == 0xca:
		return float64(math.Float32frombits(uint32(r.number(4))))
	case kind == 0xcb:
		return math.Float64frombits(uint64(r.number(8)))
	case 0xcc <= kind && kind <= 0xcf:
		return r.number(1 << (kind - 0xcc))
	case 0xd0 <= kind && kind <= 0xd3:
		bits := 8 << (kind - 0xd0)
		return r.number(bits/8) << (64 - bits) >> (64 - bits)
	case 0xd9 <= kind && kind <= 0xdb:
		return string(r.bytes(r.number(1 << (kind - 0xd9))))
	case kind == 0xdc || kind == 0xdd:
		return r.list(r.number(2 << (kind - 0xdc)))
	case kind == 0xde || kind == 0xdf:
		return r.table(r.number(2 << (kind - 0xde)))
	}
	panic(fmt.Sprintf("msgpack: byte %d is not one that the protocol uses", kind))
}
