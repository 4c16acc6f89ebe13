package websocketmw

import (
	"bytes"
	"encoding/binary"
	"iter"
	"strings"
	"testing"
)

// pieces returns a stream in pieces of the given lengths, repeated.
func pieces(stream []byte, cuts []int) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for i := 0; len(stream) > 0; i++ {
			n := len(stream)
			if len(cuts) > 0 {
				n = min(n, max(1, cuts[i%len(cuts)]))
			}
			if !yield(stream[:n]) {
				return
			}
			stream = stream[n:]
		}
	}
}

// A frame is one whose header is complete, parsed in the simplest way.
type frame struct {
	head    []byte // with the mask, as far as it is there
	payload []byte // as far as it is there
	length  uint64
}

func (f frame) opcode() byte { return f.head[0] & 0xf }
func (f frame) data() bool   { return f.opcode() < 8 }
func (f frame) final() bool  { return f.head[0]&0x80 != 0 }
func (f frame) masked() bool { return f.head[1]&0x80 != 0 }

// parse returns the frames of a stream, and what is left after those that are complete.
func parse(b []byte) (frames []frame, rest []byte) {
	for len(b) > 0 {
		rest = b
		if len(b) < 2 {
			return frames, rest
		}
		size, length := 2, uint64(b[1]&0x7f)
		switch length {
		case 126:
			size = 4
		case 127:
			size = 10
		}
		if len(b) < size {
			return frames, rest
		}
		switch size {
		case 4:
			length = uint64(binary.BigEndian.Uint16(b[2:]))
		case 10:
			length = binary.BigEndian.Uint64(b[2:])
		}
		full := size
		if b[1]&0x80 != 0 {
			full += 4
		}
		head := b[:min(full, len(b))]
		b = b[len(head):]
		n := min(length, uint64(len(b)))
		frames = append(frames, frame{head, b[:n], length})
		if b = b[n:]; len(head) < full || n < length {
			return frames, rest
		}
	}
	return frames, nil
}

// model returns how much of a stream the inspector should cover, with what, and why no more.
// It is the RFC's text, frame by frame.
func model(stream []byte, room tally, agreed extensions, pongs int64) (n int, used tally, fault bool) {
	frames, _ := parse(stream)
	fragmented, closed := false, false
	for _, f := range frames {
		rsv, op := f.head[0]>>4&7, f.opcode()
		switch op {
		case 0, 1, 2:
			fault = fault || fragmented != (op == 0)
		case 8, 9, 10:
			fault = fault || !f.final() || f.head[1]&0x7f > 125
		default:
			fault = true
		}
		fault = fault || !f.masked() || f.length >= 1<<63
		if agreed&extOther == 0 && rsv != 0 {
			fault = fault || rsv != 4 || agreed != extDeflate || op != 1 && op != 2
		}
		if fault {
			return n, used, true
		}
		next := used
		switch {
		case f.data():
			fragmented = !f.final()
			next[Frames]++
			if op != 0 {
				next[Messages]++
			}
			if f.length == 0 {
				next[Bytes]++
			}
		case op == 8 && !closed:
			closed = true
		case op == 10 && pongs > 0:
			pongs--
		default:
			next[Controls]++
		}
		for u := range next {
			if next[u] > room[u] {
				return n, used, false
			}
		}
		used = next
		n += len(f.head)
		if f.data() {
			fits := min(int64(len(f.payload)), room[Bytes]-used[Bytes])
			used[Bytes] += fits
			if n += int(fits); fits < int64(len(f.payload)) {
				return n, used, false
			}
		} else {
			n += len(f.payload)
		}
	}
	return len(stream), used, false
}

// inspect is what the inspector does. After it has stopped for want of room, it goes on where
// it stopped.
func inspect(stream []byte, cuts []int, room tally, agreed extensions, pongs int64) (n int, used tally, fault string) {
	in := inspector{pongs: pongs}
	for piece := range pieces(stream, cuts) {
		left := room
		for u := range left {
			left[u] -= used[u]
		}
		k, more, why := in.walk(piece, left, agreed)
		n += k
		for u := range used {
			used[u] += more[u]
		}
		if k < len(piece) {
			return n, used, why
		}
	}
	return n, used, ""
}

func TestInspector(t *testing.T) {
	long := func(first byte, length uint64) []byte {
		return append(binary.BigEndian.AppendUint64([]byte{first, 0xff}, length), "mask"...)
	}
	join := func(frames ...[]byte) []byte { return bytes.Join(frames, nil) }
	for _, c := range []struct {
		name   string
		stream []byte
		agreed extensions
		used   tally
		fault  string
	}{
		{"nothing", nil, 0, tally{}, ""},
		{"a message", masked(0x81, "hello"), 0, tally{1, 1, 5, 0}, ""},
		{"an empty one", masked(0x81, ""), 0, tally{1, 1, 1, 0}, ""},
		{"of 126 bytes", masked(0x82, strings.Repeat("x", 126)), 0, tally{1, 1, 126, 0}, ""},
		{"of 64 KiB", masked(0x82, strings.Repeat("x", 1<<16)), 0, tally{1, 1, 1 << 16, 0}, ""},
		{"in pieces, with a ping between them", join(masked(0x01, "a"), masked(0x89, "ping"), masked(0x00, "b"), masked(0x80, "")), 0, tally{1, 3, 3, 1}, ""},
		{"control frames", join(masked(0x8a, "pong"), masked(0x8a, "pong"), masked(0x8a, "pong"), masked(0x89, ""), masked(0x88, "\x03\xe8"), masked(0x88, "")), 0, tally{0, 0, 0, 4}, ""},
		{"half a header", []byte{0x81}, 0, tally{}, ""},
		{"half a length", []byte{0x81, 0xff, 0, 0}, 0, tally{}, ""},
		{"half a mask", []byte{0x81, 0x85, 1, 2}, 0, tally{1, 1, 0, 0}, ""},
		{"half a payload", []byte{0x81, 0x85, 1, 2, 3, 4, 5}, 0, tally{1, 1, 1, 0}, ""},
		{"the longest there is", long(0x82, 1<<63-1), 0, tally{1, 1, 0, 0}, ""},
		{"lengths that could be shorter", join([]byte("\x81\xfe\x00\x01maska"), long(0x81, 0)), 0, tally{2, 2, 2, 0}, ""},
		{"compressed", masked(0xc1, "deflated"), extDeflate, tally{1, 1, 8, 0}, ""},
		{"another extension", join(masked(0x71, "x"), masked(0xf0, "x"), masked(0xf9, "")), extOther, tally{1, 2, 2, 1}, ""},

		{"opcode 3", masked(0x83, ""), extOther, tally{}, badOpcode},
		{"opcode 7", masked(0x87, ""), 0, tally{}, badOpcode},
		{"opcode 11", masked(0x8b, "x"), extOther, tally{}, badOpcode},
		{"opcode 15", masked(0x8f, "x"), 0, tally{}, badOpcode},
		{"not masked", []byte{0x81, 1, 'a'}, extOther, tally{}, badMask},
		{"a ping that is not masked", []byte{0x89, 0}, 0, tally{}, badMask},
		{"a fragmented ping", masked(0x09, ""), 0, tally{}, badControl},
		{"a long ping", masked(0x89, strings.Repeat("x", 126)), 0, tally{}, badControlSize},
		{"a very long ping", long(0x89, 1), 0, tally{}, badControlSize},
		{"2^63", long(0x82, 1<<63), 0, tally{}, badLength},
		{"2^64 - 1", long(0x82, 1<<64-1), extOther, tally{}, badLength},
		{"a message within one", join(masked(0x01, "a"), masked(0x81, "b")), 0, tally{1, 1, 1, 0}, badMessage},
		{"a continuation of nothing", masked(0x80, "a"), 0, tally{}, badContinuation},
		{"another after the end", join(masked(0x01, "a"), masked(0x80, "b"), masked(0x80, "c")), 0, tally{1, 2, 2, 0}, badContinuation},
		{"RSV1", masked(0xc1, ""), 0, tally{}, badReserved},
		{"RSV2", masked(0xa1, ""), extDeflate, tally{}, badReserved},
		{"RSV3", masked(0x91, ""), extDeflate, tally{}, badReserved},
		{"a compressed ping", masked(0xc9, ""), extDeflate, tally{}, badReserved},
		{"a compressed continuation", join(masked(0x41, "a"), masked(0xc0, "b")), extDeflate, tally{1, 1, 1, 0}, badReserved},
	} {
		for cut := range len(c.stream) + 1 {
			n, used, fault := inspect(c.stream, []int{cut, len(c.stream)}, unlimited(), c.agreed, 1)
			if used != c.used || fault != c.fault || fault == "" && n != len(c.stream) {
				t.Errorf("%s, cut after %d: %d bytes, %v %q, not %v %q", c.name, cut, n, used, fault, c.used, c.fault)
			}
		}
		if _, used, fault := model(c.stream, unlimited(), c.agreed, 1); used != c.used || fault != (c.fault != "") {
			t.Errorf("%s: the model has %v, %v", c.name, used, fault)
		}
	}
}

// However a stream is split, and wherever room ends, the inspector covers what the model does.
func FuzzInspector(f *testing.F) {
	f.Add(append(masked(0x01, "hello"), masked(0x80, strings.Repeat("x", 300))...), 1, 2, 3, uint64(0xffffffff), byte(0))
	f.Add(append(masked(0x89, "ping"), masked(0xc2, strings.Repeat("x", 1000))...), 4096, 1, 100, uint64(0x0101ff01), byte(1))
	f.Add(append(masked(0x8a, ""), masked(0x8a, "")...), 5, 1, 1, uint64(0x01000000), byte(9))
	f.Add([]byte{0x82, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 2, 3, 4, 5}, 2, 2, 2, uint64(0xffffffff), byte(2))
	f.Fuzz(func(t *testing.T, stream []byte, a, b, c int, limits uint64, more byte) {
		var room tally
		for u := range room {
			room[u] = int64(limits >> (8 * u) & 0xff)
		}
		agreed, pongs := extensions(more&3), int64(more>>2)
		n, used, fault := model(stream, room, agreed, pongs)
		for _, cuts := range [][]int{nil, {1}, {a & 0xfff, b & 0xff, c & 0xf}} {
			// Of a header that is cut, the part before the cut has been read.
			gotN, gotUsed, gotFault := inspect(stream, cuts, room, agreed, pongs)
			if gotUsed != used || (gotFault != "") != fault || gotN < n || gotN > n+9 || cuts == nil && gotN != n {
				t.Errorf("cut after %v: %d %v %q, not %d %v %v", cuts, gotN, gotUsed, gotFault, n, used, fault)
			}
		}
	})
}

func TestExtensionsOf(t *testing.T) {
	for _, c := range []struct {
		values []string
		want   extensions
	}{
		{nil, 0},
		{[]string{""}, 0},
		{[]string{" , "}, 0},
		{[]string{"permessage-deflate"}, extDeflate},
		{[]string{" PerMessage-Deflate ; server_no_context_takeover; client_max_window_bits=10"}, extDeflate},
		{[]string{"x-webkit-deflate-frame"}, extOther},
		{[]string{"permessage-deflate, foo"}, extDeflate | extOther},
		{[]string{"foo;permessage-deflate", "permessage-deflate"}, extDeflate | extOther},
		{[]string{"foo;permessage-deflate"}, extOther},
	} {
		if got := extensionsOf(c.values...); got != c.want {
			t.Errorf("%q: %b, not %b", c.values, got, c.want)
		}
	}
}
