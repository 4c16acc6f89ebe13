package websocketmw

import (
	"encoding/binary"
	"strings"
	"testing"
	"unicode/utf8"
)

// The walker ends where frames do, however the stream is split.
func FuzzWalker(f *testing.F) {
	f.Add(append(masked(0x01, "hello"), masked(0x80, strings.Repeat("x", 300))...), 1, 2, 3)
	f.Add(append(masked(0x89, "ping"), masked(0x82, strings.Repeat("x", 1000))...), 4096, 1, 100)
	f.Add([]byte{0x82, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 2, 3, 4, 5}, 2, 2, 2)
	f.Fuzz(func(t *testing.T, stream []byte, a, b, c int) {
		frames, rest := parse(stream)
		var closes bool
		var pings int64
		for _, one := range frames {
			closes = closes || one.opcode() == opClose
			if one.opcode() == opPing {
				pings++
			}
		}
		for _, cuts := range [][]int{nil, {1}, {a & 0xfff, b & 0xff, c & 0xf}} {
			var w walker
			var gotCloses bool
			var gotPings int64
			for piece := range pieces(stream, cuts) {
				c, n := w.walk(piece)
				gotCloses, gotPings = gotCloses || c, gotPings+n
			}
			if gotCloses != closes || gotPings != pings || w.between() != (len(rest) == 0) {
				t.Errorf("cut after %v: %v %d %v, not %v %d, and %d bytes left", cuts, gotCloses, gotPings, w.between(), closes, pings, len(rest))
			}
		}
		// finish and step end where walk does.
		var w walker
		for left := stream; len(left) > 0; {
			n := w.finish(left)
			if n == 0 { // between two frames
				n, _ = w.step(left)
			}
			left = left[n:]
		}
		if w.between() != (len(rest) == 0) {
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
