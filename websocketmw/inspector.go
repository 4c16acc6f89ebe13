package websocketmw

import (
	"math"
	"strings"
)

// An inspector tracks the frames that a client sends. It counts them, and detects what RFC
// 6455 forbids in their headers, so that no library is asked what it makes of it: x/net
// takes reserved opcodes for messages and ignores the top bit of a length, which crashes
// gws. The zero inspector stands before the first frame.
type inspector struct {
	walker

	inside bool  // a message is incomplete
	closed bool  // the Close frame has begun
	pongs  int64 // pings that the client may still answer
}

// A tally is a number for each Unit.
type tally [Controls + 1]int64

// unlimited returns room for everything.
func unlimited() tally {
	return tally{math.MaxInt64, math.MaxInt64, math.MaxInt64, math.MaxInt64}
}

// What RFC 6455 forbids, for Close frames and errors.
const (
	badOpcode       = "a reserved opcode"                      // section 5.2
	badMask         = "a frame that is not masked"             // 5.1
	badControl      = "a fragmented control frame"             // 5.5
	badControlSize  = "a control frame of more than 125 bytes" // 5.5
	badLength       = "a length of 2^63 or more"               // 5.2
	badMessage      = "a message within a fragmented message"  // 5.4
	badContinuation = "a continuation of nothing"              // 5.4
	badReserved     = "a reserved bit"                         // 5.2
	badHandshake    = "data before the handshake is complete"  // 4.1
)

// walk covers p up to the first unit for which there is no room, or the first frame that is
// invalid. It returns the number of bytes, the units in them and, if it stopped at an
// invalid frame, what is wrong with it. It stops before the header of a frame, at the
// beginning of p if part of the header came before p.
func (in *inspector) walk(p []byte, room tally, agreed extensions) (n int, used tally, fault string) {
	begin, before := 0, *in // of the last frame in p
	for n < len(p) {
		if in.between() {
			begin, before = n, *in
		}
		k, over := in.step(p[n:])
		switch {
		case over == partBegin:
			if fault = in.fault(agreed); fault != "" {
				*in = before
				return begin, used, fault
			}
			with := used
			in.enter(&with)
			if with[Messages] > room[Messages] || with[Frames] > room[Frames] ||
				with[Bytes] > room[Bytes] || with[Controls] > room[Controls] {
				*in = before
				return begin, used, ""
			}
			used = with
		case over == partPayload && in.opcode()&opControl == 0:
			if left := room[Bytes] - used[Bytes]; int64(k) > left {
				in.left += uint64(int64(k) - left)
				used[Bytes] += left
				return n + int(left), used, ""
			}
			used[Bytes] += int64(k)
		}
		n += k
	}
	return n, used, ""
}

// enter counts the frame of the last complete header.
func (in *inspector) enter(used *tally) {
	op := in.opcode()
	switch {
	case op&opControl == 0:
		in.inside = in.head[0]&finBit == 0
		used[Frames]++
		if op != opContinuation {
			used[Messages]++
		}
		if in.left == 0 {
			used[Bytes]++
		}
	case op == opClose && !in.closed:
		in.closed = true
	case op == opPong && in.pongs > 0:
		in.pongs--
	default:
		used[Controls]++
	}
}

// fault returns what is wrong with the last complete header, or "". Lengths that could be shorter pass although section 5.2 forbids them: all libraries
// read the same number.
func (in *inspector) fault(agreed extensions) string {
	first, second, op := in.head[0], in.head[1], in.opcode()
	control := op&opControl != 0
	switch {
	case op > opBinary && op < opClose || op > opPong:
		return badOpcode
	case second&maskBit == 0:
		return badMask
	case control && first&finBit == 0:
		return badControl
	case control && second&lengthBits >= length16:
		return badControlSize
	case second&lengthBits == length64 && in.head[2]&topBit != 0:
		return badLength
	case !control && op != opContinuation && in.inside:
		return badMessage
	case op == opContinuation && !in.inside:
		return badContinuation
	case first&rsvBits&^agreed.rsv(op) != 0:
		return badReserved
	}
	return ""
}

// extensions are those that the server agreed to in its 101.
type extensions uint32

const (
	extDeflate extensions = 1 << iota // permessage-deflate (RFC 7692)
	extOther                          // any other
)

// rsv returns the reserved bits that a frame may have. What extensions other than
// permessage-deflate do with them is not known.
func (e extensions) rsv(op byte) byte {
	switch {
	case e&extOther != 0:
		return rsvBits
	case e&extDeflate != 0 && op != opContinuation && op&opControl == 0:
		return rsv1Bit
	}
	return 0
}

// extensionsOf returns the extensions in the values of Sec-WebSocket-Extensions.
func extensionsOf(values ...string) (e extensions) {
	for _, v := range values {
		for item := range strings.SplitSeq(v, ",") {
			name, _, _ := strings.Cut(item, ";")
			switch name = strings.Trim(name, " \t"); {
			case strings.EqualFold(name, "permessage-deflate"):
				e |= extDeflate
			case name != "":
				e |= extOther
			}
		}
	}
	return e
}
