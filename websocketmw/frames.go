package websocketmw

import (
	"encoding/binary"
	"strings"
	"unicode/utf8"
)

// Opcodes of RFC 6455, section 5.2.
const (
	opContinuation = 0x0
	opClose        = 0x8
	opControl      = 0x8 // this bit is that of control frames
)

// A walker follows the frames of RFC 6455, section 5.2, in a stream of bytes that is
// cut anywhere. It copies headers only, and cannot fail: what libraries refuse it
// follows as the lengths say. The zero walker stands before the first frame.
type walker struct {
	head [10]byte // the header without its mask
	have uint8    // bytes of head that are there
	mask uint8    // bytes of the mask still to come
	left uint64   // bytes of the payload still to come
}

// A part is what a step of the walker went over.
type part uint8

const (
	partHeader  part = iota // some of a header
	partBegin               // the last of a header before the mask: head tells the frame
	partMask                // some of the mask
	partPayload             // some of the payload
)

// step goes over at least one byte of p, which is not empty, and over one part at most.
func (w *walker) step(p []byte) (n int, over part) {
	switch {
	case w.mask > 0:
		n = min(int(w.mask), len(p))
		w.mask -= uint8(n)
		return n, partMask
	case w.left > 0:
		n = len(p)
		if uint64(n) > w.left {
			n = int(w.left)
		}
		w.left -= uint64(n)
		return n, partPayload
	}
	for n < len(p) {
		w.head[w.have] = p[n]
		w.have++
		n++
		if w.have >= 2 && w.have == w.need() {
			w.begin()
			return n, partBegin
		}
	}
	return n, partHeader
}

// need is the length of the header, of which two bytes are there.
func (w *walker) need() uint8 {
	switch w.head[1] & 0x7f {
	case 126:
		return 4
	case 127:
		return 10
	}
	return 2
}

// begin reads the header that is complete.
func (w *walker) begin() {
	w.have = 0
	switch n := w.head[1] & 0x7f; n {
	case 126:
		w.left = uint64(binary.BigEndian.Uint16(w.head[2:]))
	case 127:
		w.left = binary.BigEndian.Uint64(w.head[2:])
	default:
		w.left = uint64(n)
	}
	if w.head[1]&0x80 != 0 {
		w.mask = 4
	}
}

// opcode is that of the frame that began last.
func (w *walker) opcode() byte { return w.head[0] & 0xf }

// between reports whether no frame is under way.
func (w *walker) between() bool { return w.have == 0 && w.mask == 0 && w.left == 0 }

// walk goes over all of p, and reports whether a Close frame began.
func (w *walker) walk(p []byte) (closes bool) {
	for len(p) > 0 {
		n, over := w.step(p)
		closes = closes || over == partBegin && w.opcode() == opClose
		p = p[n:]
	}
	return closes
}

// finish returns the number of bytes of p up to the end of the frame that is under
// way, or all if it does not end there.
func (w *walker) finish(p []byte) int {
	total := 0
	for total < len(p) && !w.between() {
		n, _ := w.step(p[total:])
		total += n
	}
	return total
}

// closeFrame is a Close frame of a server, with as much of the reason as fits.
func closeFrame(code int, reason string) []byte {
	const most = 123
	reason = strings.ToValidUTF8(reason, "\ufffd") // of anything else clients make an error
	if len(reason) > most {
		cut := most
		for !utf8.RuneStart(reason[cut]) {
			cut--
		}
		reason = reason[:cut]
	}
	b := []byte{0x80 | opClose, byte(2 + len(reason)), byte(code >> 8), byte(code)}
	return append(b, reason...)
}
