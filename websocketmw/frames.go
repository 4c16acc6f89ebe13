package websocketmw

import (
	"encoding/binary"
	"strings"
	"unicode/utf8"
)

// Opcodes of RFC 6455, section 5.2.
const (
	opContinuation = 0x0
	opBinary       = 0x2 // the last of those for data
	opClose        = 0x8
	opPing         = 0x9
	opPong         = 0xa
	opControl      = 0x8 // the bit that control frames have
)

// The header of a frame (RFC 6455, section 5.2).
const (
	finBit     = 0x80 // in the first byte
	rsvBits    = 0x70 // in the first byte
	rsv1Bit    = 0x40 // in the first byte
	opcodeBits = 0x0f // in the first byte
	maskBit    = 0x80 // in the second byte
	lengthBits = 0x7f // in the second byte
	length16   = 126  // the length is in the next 2 bytes
	length64   = 127  // the length is in the next 8 bytes
	topBit     = 0x80 // in the first of those 8
	maskLength = 4
)

// A walker tracks the frames in a stream of bytes, however it is split. It copies only
// headers, and cannot fail: it skips invalid frames by their lengths. The zero walker
// stands before the first frame.
type walker struct {
	head [10]byte // the header without its mask
	have uint8    // bytes of head so far
	mask uint8    // bytes of the mask still to come
	left uint64   // bytes of the payload still to come
}

// A part is what a step of the walker covered.
type part uint8

const (
	partHeader  part = iota // bytes of a header
	partBegin               // the last byte of a header before the mask: head is complete
	partMask                // bytes of the mask
	partPayload             // bytes of the payload
)

// step covers at least one byte of p, which is not empty, and at most one part.
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

// need returns the length of the header without its mask. Its first two bytes are in head.
func (w *walker) need() uint8 {
	switch w.head[1] & lengthBits {
	case length16:
		return 2 + 2
	case length64:
		return 2 + 8
	}
	return 2
}

// begin parses the complete header.
func (w *walker) begin() {
	w.have = 0
	switch n := w.head[1] & lengthBits; n {
	case length16:
		w.left = uint64(binary.BigEndian.Uint16(w.head[2:]))
	case length64:
		w.left = binary.BigEndian.Uint64(w.head[2:])
	default:
		w.left = uint64(n)
	}
	if w.head[1]&maskBit != 0 {
		w.mask = maskLength
	}
}

// opcode returns the opcode of the last complete header.
func (w *walker) opcode() byte { return w.head[0] & opcodeBits }

// rest returns how many bytes of the incomplete frame are sure to come.
func (w *walker) rest() int {
	if w.mask == 0 && w.left == 0 {
		return 1 // of the header
	}
	return int(w.mask) + int(min(w.left, maxRead))
}

// between reports whether no frame is incomplete.
func (w *walker) between() bool { return w.have == 0 && w.mask == 0 && w.left == 0 }

// walk covers all of p. It reports whether a Close frame began, and how many pings did.
func (w *walker) walk(p []byte) (closes bool, pings int64) {
	for len(p) > 0 {
		n, over := w.step(p)
		if over == partBegin {
			switch w.opcode() {
			case opClose:
				closes = true
			case opPing:
				pings++
			}
		}
		p = p[n:]
	}
	return closes, pings
}

// finish covers p up to the end of the incomplete frame, or all of p if the frame does not
// end there, and returns the number of bytes.
func (w *walker) finish(p []byte) int {
	total := 0
	for total < len(p) && !w.between() {
		n, _ := w.step(p[total:])
		total += n
	}
	return total
}

// maxReason is the most bytes that the reason in a Close frame can have: the payload of a
// control frame is at most 125 bytes, of which the code takes 2.
const maxReason = 125 - 2

// closeFrame returns a Close frame of a server, with as much of the reason as fits.
func closeFrame(code int, reason string) []byte {
	reason = strings.ToValidUTF8(reason, "\ufffd") // clients reject anything else
	if len(reason) > maxReason {
		cut := maxReason
		for !utf8.RuneStart(reason[cut]) {
			cut--
		}
		reason = reason[:cut]
	}
	b := []byte{finBit | opClose, byte(2 + len(reason)), byte(code >> 8), byte(code)}
	return append(b, reason...)
}
