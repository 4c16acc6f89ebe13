package frames

import "encoding/binary"

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

// A Walker follows the frames in a stream of bytes, however it is split. It copies only headers,
// and cannot fail: it skips invalid frames by their lengths. The zero Walker stands before the
// first frame.
type Walker struct {
	head [10]byte // the header without its mask
	have uint8    // bytes of head so far
	mask uint8    // bytes of the mask still to come
	left uint64   // bytes of the payload still to come
}

// Between reports whether no frame is incomplete.
func (w *Walker) Between() bool { return w.have == 0 && !w.inBody() }

// Walk covers all of p. It reports whether a Close frame began, and how many pings did.
func (w *Walker) Walk(p []byte) (closes bool, pings int64) {
	for len(p) > 0 {
		n, begins := w.next(p)
		if begins {
			closes = closes || w.opcode() == opClose
			if w.opcode() == opPing {
				pings++
			}
		}
		p = p[n:]
	}
	return closes, pings
}

// Finish covers p up to the end of the incomplete frame, or all of p if the frame does not end
// there. It returns the number of bytes.
func (w *Walker) Finish(p []byte) (total int) {
	for total < len(p) && !w.Between() {
		n, _ := w.next(p[total:])
		total += n
	}
	return total
}

// Rest returns how many bytes of the incomplete frame are sure to come, or fewer if they are very
// many.
func (w *Walker) Rest() int {
	const many = 1 << 30
	if !w.inBody() {
		return 1 // of the header
	}
	return int(w.mask) + int(min(w.left, many))
}

// next covers at least one byte of p, which is not empty: bytes of a header, which begins a frame
// if it is complete, or what is there of a mask and a payload.
func (w *Walker) next(p []byte) (n int, begins bool) {
	if !w.inBody() {
		return w.header(p)
	}
	n, rest := w.body(p)
	return n + rest, false
}

// inBody reports whether bytes of a mask or a payload come next.
func (w *Walker) inBody() bool { return w.mask > 0 || w.left > 0 }

// header covers bytes of a header without its mask. It reports whether that is complete.
func (w *Walker) header(p []byte) (n int, complete bool) {
	if w.have == 0 && len(p) >= 2 && p[1]&lengthBits < length16 { // most are like that
		w.head[0], w.head[1] = p[0], p[1]
		w.begin()
		return 2, true
	}
	for n < len(p) {
		w.head[w.have] = p[n]
		w.have++
		n++
		if w.have >= 2 && w.have == w.need() {
			w.begin()
			return n, true
		}
	}
	return n, false
}

// body covers bytes of a mask and of a payload.
func (w *Walker) body(p []byte) (mask, payload int) {
	mask = min(int(w.mask), len(p))
	payload = len(p) - mask
	if uint64(payload) > w.left {
		payload = int(w.left)
	}
	w.mask -= uint8(mask)
	w.left -= uint64(payload)
	return mask, payload
}

// need returns the length of the header without its mask. Its first two bytes are in head.
func (w *Walker) need() uint8 {
	switch w.head[1] & lengthBits {
	case length16:
		return 2 + 2
	case length64:
		return 2 + 8
	}
	return 2
}

// begin parses the complete header.
func (w *Walker) begin() {
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
func (w *Walker) opcode() byte { return w.head[0] & opcodeBits }
