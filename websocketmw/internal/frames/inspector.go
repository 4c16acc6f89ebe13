// The Inspector: what a client's frames count, and what is forbidden in them. It may not charge, or keep
// the bytes.

package frames

// What RFC 6455 forbids, for Close frames and errors.
const (
	BadHandshake    = "data before the handshake is complete"  // section 4.1
	badOpcode       = "a reserved opcode"                      // 5.2
	badMask         = "a frame that is not masked"             // 5.1
	badControl      = "a fragmented control frame"             // 5.5
	badControlSize  = "a control frame of more than 125 bytes" // 5.5
	badLength       = "a length of 2^63 or more"               // 5.2
	badMessage      = "a message within a fragmented message"  // 5.4
	badContinuation = "a continuation of nothing"              // 5.4
	badReserved     = "a reserved bit"                         // 5.2
)

// An Inspector is a place in the stream that a client sends: what must be known of the frames before
// it. It detects what RFC 6455 forbids in headers, so that no library is asked what it makes of
// it: x/net takes reserved opcodes for messages and ignores the top bit of a length, which crashes
// gws. The zero Inspector stands before the first frame.
type Inspector struct {
	Walker

	Pongs  int64 // pings that the client may still answer
	Closed bool  // the Close frame has begun
	inside bool  // a message is incomplete
	keeps  bool  // OnlyClose keeps the current frame
}

// A Span is how far a walk has come in some bytes.
type Span struct {
	N     int       // bytes
	Used  Tally     // the units in them
	Fault string    // what is wrong with the frame after them; empty: nothing
	After Inspector // the place behind them
}

// Found is what a walk has found in some bytes: the frames that begin there, and what they count.
type Found struct {
	Span

	before Inspector
	frames int // how many
	few    [fewFrames]Frame
	more   []Frame
}

// fewFrames is how many frames most reads have.
const fewFrames = 4

// A Frame is where a walk has found one, as offsets in the bytes that were walked. The first may
// have begun before them.
type Frame struct {
	start int32 // its header
	body  int32 // what is there of its payload
	end   int32 // the end of that
	first byte  // of the header
	begun bool  // its header was complete before, and counted
	empty bool
}

// MostIn returns how many frames there may be in n bytes: one that began before, those that have at
// least two bytes and a mask, and one of which the header is there.
func MostIn(n int) int { return 1 + n/(2+maskLength) + 1 }

// Walk covers p from a place on, up to the first frame that is invalid. If the header of that frame
// began before p, Walk covers nothing of it. If there are more than a few frames, Walk stops and
// returns false: Go on then. p has at most 2 GiB. The Found is a zero one.
func (f *Found) Walk(from *Inspector, p []byte, agreed Extensions) (all bool) {
	f.After, f.before = *from, *from
	if from.inBody() {
		f.body(p, 0, Frame{first: from.head[0], begun: true})
	}
	return f.walk(p, agreed)
}

// Go goes on after a few frames, with room for more.
func (f *Found) Go(p []byte, agreed Extensions, more []Frame) (all bool) {
	copy(more, f.more[:max(0, f.frames-fewFrames)])
	f.more = more
	return f.walk(p, agreed)
}

// frame returns the frame of a number.
func (f *Found) frame(i int) *Frame {
	if i < fewFrames {
		return &f.few[i]
	}
	return &f.more[i-fewFrames]
}

func (f *Found) walk(p []byte, agreed Extensions) (all bool) {
	at := &f.After
	for f.N < len(p) {
		if f.frames == fewFrames+len(f.more) {
			return false
		}
		before := at.Walker
		k, complete := at.header(p[f.N:])
		if !complete {
			f.N += k
			break
		}
		if f.Fault = at.fault(agreed); f.Fault != "" {
			at.Walker = before
			break
		}
		one := Frame{start: int32(f.N), first: at.head[0], empty: at.left == 0}
		at.enter(one.first, one.empty, &f.Used)
		f.body(p, f.N+k, one)
	}
	return true
}

// body adds a frame whose mask or payload is at p[n:].
func (f *Found) body(p []byte, n int, one Frame) {
	mask, payload := f.After.Walker.body(p[n:])
	one.body = int32(n + mask)
	one.end = one.body + int32(payload)
	if one.first&opControl == 0 {
		f.Used[Bytes] += int64(payload)
	}
	*f.frame(f.frames) = one
	f.frames++
	f.N = int(one.end)
}

// Cut returns how much of what was found there is room for: it ends before the header of a frame, or
// within a payload.
func (f *Found) Cut(room Tally) Span {
	if f.Used.within(&room) {
		return f.Span
	}
	at, used := f.before, Tally{}
	for i := range f.frames {
		one := f.frame(i)
		before, with := at, used
		if !one.begun {
			at.enter(one.first, one.empty, &with)
			if !with.within(&room) {
				return Span{N: int(one.start), Used: used, After: before}
			}
			used = with
		}
		at.Walker = Walker{}
		if one.first&opControl != 0 {
			continue
		}
		payload := int64(one.end - one.body)
		if fits := room[Bytes] - used[Bytes]; fits < payload {
			left := uint64(payload - fits)
			if i == f.frames-1 {
				left += f.After.left // of which nothing is there
			}
			used[Bytes] += fits
			at.Walker = Walker{head: [10]byte{one.first}, left: left}
			return Span{N: int(one.body) + int(fits), Used: used, After: at}
		}
		used[Bytes] += payload
	}
	return f.Span
}

// enter counts a frame whose header is complete.
func (in *Inspector) enter(first byte, empty bool, used *Tally) {
	op := first & opcodeBits
	switch {
	case op&opControl == 0:
		in.inside = first&finBit == 0
		used[Frames]++
		if op != opContinuation {
			used[Messages]++
		}
		if empty {
			used[Bytes]++
		}
	case op == opClose && !in.Closed:
		in.Closed = true
	case op == opPong && in.Pongs > 0:
		in.Pongs--
	default:
		used[Controls]++
	}
}

// fault returns what is wrong with the last complete header, or "". Lengths that could be shorter
// pass although section 5.2 forbids them: all libraries read the same number.
func (in *Inspector) fault(agreed Extensions) string {
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

// OnlyClose walks p, moves the client's Close frame to its beginning, and drops all other frames,
// whatever they are. It returns how many bytes of the Close frame are in p, and what is wrong with it.
func (in *Inspector) OnlyClose(p []byte, agreed Extensions) (n int, fault string) {
	for at := 0; at < len(p); {
		if in.Between() {
			in.keeps = p[at]&opcodeBits == opClose && !in.Closed
		}
		k, begins := in.next(p[at:])
		if in.keeps {
			n += copy(p[n:], p[at:at+k])
		}
		if at += k; in.keeps && begins {
			if fault = in.fault(agreed); fault != "" {
				return 0, fault
			}
			in.Closed = true
		}
	}
	return n, ""
}
