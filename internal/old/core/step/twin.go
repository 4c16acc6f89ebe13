package step

import "fmt"

// ValueBytes returns the length of the value that the twin of a step stores: the parameters of the
// state, and the state. The value of a SlidingLog is longer.
func ValueBytes(p Step) int {
	words := p.Words()
	switch p.Numbers().Algorithm {
	case TokenBucket:
		words += 4
	case SlidingWindow:
		words += windowHeader
	default:
		words++
	}
	return words * WordBytes
}

// ReplyBytes returns the length of the state in the reply of a step's twin, if it has one, to an
// allowed or refused question.
func ReplyBytes(p Step, allowed bool) int {
	switch p.Numbers().Algorithm {
	case SlidingWindow:
		return WordBytes + ValueBytes(p)
	case SlidingLog:
		if allowed {
			return logHeader
		}
		return logReply
	}
	return p.Words() * WordBytes
}

const (
	logHeader = 3*WordBytes + 4*2 // period, newest, oldest; most, first, count, size; without over
	logReply  = 4 * WordBytes     // count, and the instants that Read needs
)

// windowHeader is how many words of numbers are before the state of a sliding window.
const windowHeader = 2

// ReadTwin is Read of a state in the reply of the step's twin, in words of [WordBytes]. The twin of
// a sliding window replies with the record that it found. Of n units, charged were charged since,
// or refused were counted as refused. Another program may have left values under the key that no
// twin writes. They are bounded rather than reported, because the charge has been made by then.
func ReadTwin(p Step, reply string, now, n, charged, refused int64) (Reading, error) {
	if len(reply) != ReplyBytes(p, false) && len(reply) != ReplyBytes(p, true) {
		return Reading{}, fmt.Errorf("headgate: a state of %d bytes", len(reply))
	}
	if log, ok := p.(*slidingLog); ok && len(reply) == logHeader {
		newest, oldest := min(Word(reply[WordBytes:]), MaxInt), min(Word(reply[2*WordBytes:]), MaxInt)
		count := int64(reply[logHeader-4])<<8 | int64(reply[logHeader-3])
		return log.reading(now, n, count, 0, oldest, newest), nil
	}
	var room [16]int64
	s := room[:0]
	for ; len(reply) > 0; reply = reply[WordBytes:] {
		s = append(s, min(Word(reply), MaxInt)) // what is above is not of a twin
	}
	if window, ok := p.(*slidingWindow); ok {
		s = s[1+windowHeader:]
		if charged > 0 {
			window.Report(s, now, charged, 0)
		} else if refused > 0 {
			window.Refuse(s, now, refused)
		}
		return window.Read(s, now, n), nil
	}
	switch p := p.(type) { // by type, so that s does not escape to the heap
	case *tokenBucket:
		s[1] = min(s[1], p.n-1)
		return p.Read(s, now, n), nil
	case *fixedWindow:
		return p.Read(s, now, n), nil
	case *minInterval:
		return p.Read(s, now, n), nil
	case *slidingLog:
		return p.reading(now, n, s[0], s[1], s[2], s[3]), nil
	}
	return Reading{}, fmt.Errorf("headgate: a state of %v", p.Numbers().Algorithm)
}

// WordBytes is the length of a stored integer, big endian: 2^53-1 takes 7 bytes.
const WordBytes = 7

// Word decodes the integer at the beginning of b.
func Word(b string) int64 {
	_ = b[6]
	return int64(b[0])<<48 | int64(b[1])<<40 | int64(b[2])<<32 | int64(b[3])<<24 |
		int64(b[4])<<16 | int64(b[5])<<8 | int64(b[6])
}

// AppendWord appends the encoding of x, 0 <= x <= [MaxInt].
func AppendWord(b []byte, x int64) []byte {
	return append(b, byte(x>>48), byte(x>>40), byte(x>>32), byte(x>>24), byte(x>>16), byte(x>>8), byte(x))
}
