package websocketmw

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"
	"unicode/utf8"
)

// count returns the units in a stream that is split into pieces of the given lengths,
// repeated.
func count(stream []byte, cuts ...int) (sums [Bytes + 1]int64, between bool) {
	var w walker
	for i := 0; len(stream) > 0; i++ {
		n := len(stream)
		if len(cuts) > 0 {
			n = min(n, max(1, cuts[i%len(cuts)]))
		}
		walkUnits(&w, stream[:n], func(_ int, u Unit, n int64) bool {
			sums[u] += n
			return true
		})
		stream = stream[n:]
	}
	return sums, w.between()
}

// model counts the units in the simplest way.
func model(b []byte) (sums [Bytes + 1]int64, between bool) {
	for len(b) > 0 {
		if len(b) < 2 {
			return sums, false
		}
		op, length, size := b[0]&0xf, uint64(b[1]&0x7f), 2
		switch length {
		case 126:
			size = 4
		case 127:
			size = 10
		}
		if len(b) < size {
			return sums, false
		}
		switch size {
		case 4:
			length = uint64(binary.BigEndian.Uint16(b[2:]))
		case 10:
			length = binary.BigEndian.Uint64(b[2:])
		}
		if op < 8 {
			sums[Frames]++
			if op > 0 {
				sums[Messages]++
			}
		}
		masked := b[1]&0x80 != 0
		b = b[size:]
		if masked {
			if len(b) < 4 {
				return sums, false
			}
			b = b[4:]
		}
		n := min(length, uint64(len(b)))
		if op < 8 {
			sums[Bytes] += int64(n)
		}
		b = b[n:]
		if n < length {
			return sums, false
		}
	}
	return sums, true
}

func TestWalker(t *testing.T) {
	for _, c := range []struct {
		name    string
		stream  []byte
		want    [Bytes + 1]int64
		between bool
	}{
		{"nothing", nil, [3]int64{}, true},
		{"a message", masked(0x81, "hello"), [3]int64{1, 1, 5}, true},
		{"an empty one", masked(0x81, ""), [3]int64{1, 1, 0}, true},
		{"not masked", []byte{0x81, 1, 'a'}, [3]int64{1, 1, 1}, true},
		{"compressed", masked(0xc1, "deflated"), [3]int64{1, 1, 8}, true},
		{"of 126 bytes", masked(0x82, strings.Repeat("x", 126)), [3]int64{1, 1, 126}, true},
		{"of 64 KiB", masked(0x82, strings.Repeat("x", 1<<16)), [3]int64{1, 1, 1 << 16}, true},
		{
			"in pieces, with a ping between them",
			bytes.Join([][]byte{masked(0x01, "a"), masked(0x89, "ping"), masked(0x00, "b"), masked(0x80, "c")}, nil),
			[3]int64{1, 3, 3}, true,
		},
		{"control frames", append(masked(0x8a, "pong"), masked(0x88, "\x03\xe8")...), [3]int64{}, true},
		{"half a header", []byte{0x81}, [3]int64{}, false},
		{"half a length", []byte{0x81, 0xff, 0, 0}, [3]int64{}, false},
		{"half a mask", []byte{0x81, 0x85, 1, 2}, [3]int64{1, 1, 0}, false},
		{"a length of all ones", append([]byte{0x82, 0xff}, bytes.Repeat([]byte{0xff}, 20)...), [3]int64{1, 1, 8}, false},
		{"a long control frame", append([]byte{0x89, 0xfe, 1, 0}, make([]byte, 4+256)...), [3]int64{}, true},
		{"reserved bits and opcodes", masked(0xf3, "x"), [3]int64{1, 1, 1}, true},
	} {
		for _, cuts := range [][]int{nil, {1}, {2, 3}, {7}} {
			if got, between := count(c.stream, cuts...); got != c.want || between != c.between {
				t.Errorf("%s, cut after %v: %v %v, not %v %v", c.name, cuts, got, between, c.want, c.between)
			}
		}
		if got, between := model(c.stream); got != c.want || between != c.between {
			t.Errorf("%s: the model has %v %v", c.name, got, between)
		}
	}
}

// The units are the same however the stream is split.
func FuzzWalker(f *testing.F) {
	f.Add(append(masked(0x01, "hello"), masked(0x80, strings.Repeat("x", 300))...), 1, 2, 3)
	f.Add(append(masked(0x89, "ping"), masked(0x82, strings.Repeat("x", 1000))...), 4096, 1, 100)
	f.Add([]byte{0x82, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 2, 3, 4, 5}, 2, 2, 2)
	f.Fuzz(func(t *testing.T, stream []byte, a, b, c int) {
		want, between := model(stream)
		for _, cuts := range [][]int{nil, {1}, {a & 0xfff, b & 0xff, c & 0xf}} {
			if got, ends := count(stream, cuts...); got != want || ends != between {
				t.Errorf("cut after %v: %v %v, not %v %v", cuts, got, ends, want, between)
			}
		}
		// finish and step end where walk does.
		var w walker
		rest := stream
		for len(rest) > 0 {
			n := w.finish(rest)
			if n == 0 { // between two frames
				n, _ = w.step(rest)
			}
			rest = rest[n:]
		}
		if w.between() != between {
			t.Error("finish does not end where frames do")
		}
	})
}

func TestCloseFrame(t *testing.T) {
	for _, c := range []struct {
		reason string
		length int
	}{
		{"", 0}, {"why", 3}, {strings.Repeat("x", 123), 123}, {strings.Repeat("x", 124), 123}, {strings.Repeat("€", 100), 123}, {strings.Repeat("ä", 100), 122},
		{strings.Repeat("\x80", 200), 3}, {"\xff" + strings.Repeat("x", 130), 123},
	} {
		b := closeFrame(1013, c.reason)
		if len(b) != 4+c.length || b[0] != 0x88 || int(b[1]) != len(b)-2 || binary.BigEndian.Uint16(b[2:]) != 1013 || !utf8.Valid(b[4:]) {
			t.Errorf("%q: % x", c.reason, b)
		}
	}
}

// walkUnits stops when yield returns false.
func TestWalkUnitsStops(t *testing.T) {
	for _, last := range []Unit{Messages, Frames, Bytes} {
		var w walker
		var got []Unit
		walkUnits(&w, append(masked(0x81, "a"), masked(0x81, "b")...), func(_ int, u Unit, _ int64) bool {
			got = append(got, u)
			return u != last
		})
		if n := int(last) + 1; len(got) != n {
			t.Errorf("it continues after %v", got)
		}
	}
}
