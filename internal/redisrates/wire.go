package redisrates

import (
	"cmp"
	"errors"
	"math/bits"
	"strconv"
	"sync"
	"time"

	"github.com/headgate/headgate/internal/step"
)

// wordBytes is the length of a number in arguments and replies: 7 bytes, big-endian. So it is exact in Lua.
const wordBytes = 7

// appendWord appends a number that is not negative, and below 2^53.
func appendWord(b []byte, x int64) []byte {
	return append(b, byte(x>>48), byte(x>>40), byte(x>>32), byte(x>>24), byte(x>>16), byte(x>>8), byte(x))
}

func bit(is bool) int64 {
	if is {
		return 1
	}
	return 0
}

func words(numbers ...int64) (b []byte) {
	for _, number := range numbers {
		b = appendWord(b, number)
	}
	return b
}

// Arguments are those of one run of a Lua script. Their buffers are used again.
type arguments struct {
	words     []any // of the command
	keys      []argument
	cells     argument
	now       argument // in tests
	registers [registerCount + 1]struct {
		attached *scriptPolicy
		units    int64
	}
	tag []byte // of the latest key
}

// An argument is bytes. Its pointer is an any without an allocation, which a string or a slice of bytes is not.
type argument []byte

// MarshalBinary implements [encoding.BinaryMarshaler], which the client looks for.
func (a *argument) MarshalBinary() ([]byte, error) { return *a, nil }

var argumentsPool = sync.Pool{New: func() any { return new(arguments) }}

func (a *arguments) free() {
	clear(a.registers[:]) // each run is told its numbers anew
	argumentsPool.Put(a)
}

// newArguments returns those that ask questions, or settle, for one hash slot.
func (s *script) newArguments(batch []*question) *arguments {
	a := argumentsPool.Get().(*arguments)
	a.keys = a.keys[:0]
	a.cells = a.cells[:0]
	a.now = a.now[:0]
	for _, q := range batch {
		for i := range q.cells {
			cell := &q.cells[i]
			attached := cell.Policy.Attachment.(*scriptPolicy)
			// The cells of a key stand together. With a secret, its part of a name is a hash, which is made once.
			if i == 0 || q.cells[i-1].Key != cell.Key {
				a.tag = s.names.AppendTag(a.tag[:0], cell.Key.Reveal())
			}
			a.addKey(attached)
			if q.mode == step.Settle {
				a.cells = attached.corrections(append(a.cells, byte(attached.Algorithm)), cell)
			} else {
				a.addCell(attached, cell, q.mode, i < len(q.cells)-1)
			}
		}
	}
	// Else the script asks the server for the time: the clocks of processes differ, and a skew would admit twice.
	if s.instant != nil {
		a.now = s.instant(a.now)
	}
	return a
}

// addKey adds the name of a cell of the latest key.
func (a *arguments) addKey(attached *scriptPolicy) {
	n := len(a.keys)
	if n == cap(a.keys) {
		a.keys = append(a.keys, nil)
	}
	a.keys = a.keys[:n+1] // where an earlier name has left its buffer
	a.keys[n] = append(append(a.keys[n][:0], a.tag...), attached.suffix...)
}

// addCell adds what is asked about a cell. Numbers follow, and replace its last byte, if they are not those of the cell
// before it in the register: the script reads them once for many questions of one policy.
func (a *arguments) addCell(attached *scriptPolicy, cell *step.Cell, mode step.Mode, more bool) {
	units := cell.Asked()
	register := &a.registers[attached.register]
	asks := mode == step.Peek || cell.Units == 0
	a.cells = append(a.cells, byte(attached.Algorithm), byte(bit(asks)), byte(bit(more)), attached.register, 0)
	if register.attached != attached || register.units != units {
		register.attached = attached
		register.units = units
		a.cells = attached.appendNumbers(a.cells, cell.Policy, units)
	}
}

// command returns the words of EVALSHA or EVAL. The first key of a Cluster is a string, in which the client looks for
// the hash slot.
func (a *arguments) command(name, shaOrSource any, cluster bool) []any {
	a.words = append(a.words[:0], name, shaOrSource, len(a.keys))
	for i := range a.keys {
		a.words = append(a.words, &a.keys[i])
	}
	if cluster { // of one server, that allocation is saved
		a.words[3] = string(a.keys[0])
	}
	a.words = append(a.words, &a.cells)
	if len(a.now) > 0 {
		a.words = append(a.words, &a.now)
	}
	return a.words
}

// A reply is the part of a script's reply that was not read yet.
//
//	a bucket that admits    7 bytes: the instant | 03 | 0001764380000000 | the next cell ...
//	a key that is new       7 bytes: the instant | 07 | the next cell ...
//
// The instant is that of all cells of a run. A byte of flags begins each cell, and the value before follows, if there
// was one.
type reply string

// take returns the next n bytes, or zeros if they are missing.
func (r *reply) take(n int) string {
	if len(*r) < n {
		*r = ""
		return string(make([]byte, n))
	}
	taken := (*r)[:n]
	*r = (*r)[n:]
	return string(taken)
}

func (r *reply) word() int64 { return word(r.take(wordBytes)) }

func word(text string) int64 {
	_ = text[6]
	return int64(text[6]) | int64(text[5])<<8 | int64(text[4])<<16 | int64(text[3])<<24 | int64(text[2])<<32 |
		int64(text[1])<<40 | int64(text[0])<<48
}

// The bits of the byte before the answer of each cell, as in the scripts.
const (
	cellAdmits = 1 << iota
	questionAllowed
	cellNew
	cellForeign
)

// undecided is the Shortfall of a cell that the script has left alone. decideGroup asks again about these.
const undecided = -1

// readReply answers the questions of a part. What is missing at its end is errReply, for all questions of the part:
// nobody knows which cells were meant.
func (s *script) readReply(batch []*question, text string) error {
	r := reply(text)
	now := r.word()
	if now > step.MaxInt { // of 7 bytes, more than a state can hold
		return errReply
	}
	for _, q := range batch {
		q.allowed = true
		q.err = nil
		for i := range q.cells {
			if r == "" {
				return errReply
			}
			cell := &q.cells[i]
			if q.mode == step.Settle {
				q.answerSettled(cell, now, &r)
			} else {
				q.answerCell(cell, now, &r)
			}
			if cell.Shortfall != undecided {
				cell.Instant = now
				cell.Source = step.SourceStore
				continue
			}
			// Of a calendar the script leaves a cell alone whose value is foreign, and one of whose window it was not
			// told. Which of them it is, the second answer shows: from now on the clock is known.
			attached := cell.Policy.Attachment.(*scriptPolicy)
			if attached.calendar() && !errors.Is(q.err, errDamaged) {
				q.err = errOtherWindow
				s.aheadMicros.Store(now - time.Now().UnixMicro())
			}
		}
	}
	return nil
}

// clock returns what the clock of the server shows, as far as is known: what this one does, unless they are half of a
// window of a calendar or more apart.
func (s *script) clock() int64 { return time.Now().UnixMicro() + s.aheadMicros.Load() }

// answerCell answers a cell by the value before, on which the step is repeated.
func (q *question) answerCell(cell *step.Cell, now int64, r *reply) {
	attached := cell.Policy.Attachment.(*scriptPolicy)
	flags := r.take(1)[0]
	if flags&cellForeign != 0 {
		q.allowed = false
		q.err = cmp.Or(q.err, errForeign)
		cell.Shortfall = undecided
		return
	}
	q.allowed = flags&questionAllowed != 0

	// The script has said only whether the cell admits, and what its value was. The same step as the script's, in Go,
	// says what is left and how long to wait.
	charge := q.allowed && q.mode == step.Allow
	switch attached.Algorithm {
	case step.Log:
		q.answerLog(cell, now, flags, r, charge)
	case step.Level, step.Window:
		var room [16]int64
		state, sound := attached.parseState(cell, room[:], now, flags, r)
		if !sound {
			q.err = errDamaged
			return
		}
		admitted := cell.Take(state, now, charge)
		if !admitted && flags&cellAdmits != 0 {
			// Doubles of the script are rounded: it can admit what is 1e-16 of a unit too much. What it says counts,
			// since it has charged.
			cell.Shortfall = 0
			cell.RetryAfter = 0
		}
		if !q.allowed {
			cell.CountRefused(state, now, step.Allow)
		}
	default:
		panic(step.Missing(attached.Algorithm))
	}
}

// parseState reads what a level or a window was before, as a state. It is not sound if no script can have written it:
// the script itself looks only at the numbers that it needs.
func (p *scriptPolicy) parseState(
	cell *step.Cell, room []int64, now int64, flags byte, r *reply,
) (state []int64, sound bool) {
	switch p.Algorithm {
	case step.Level:
		return r.parseLevel(cell, room[:2], now, flags)
	case step.Window:
		return p.parseWindow(cell, room, flags, r)
	default:
		panic(step.Missing(p.Algorithm))
	}
}

// parseLevel is parseState for a level.
func (r *reply) parseLevel(cell *step.Cell, state []int64, now int64, flags byte) (_ []int64, sound bool) {
	if flags&cellNew != 0 {
		return state, true
	}
	level, err := strconv.ParseUint(r.take(levelDigits), 10, bits.Len64(step.MaxInt))
	if err == nil {
		cell.Policy.SetLevel(state, now, int64(level))
	}
	return state, err == nil
}

// parseWindow is parseState for a window.
func (p *scriptPolicy) parseWindow(cell *step.Cell, room []int64, flags byte, r *reply) (state []int64, sound bool) {
	size, _ := cell.Policy.Lengths()
	state = append(room[:0], make([]int64, size)...)
	if flags&cellNew != 0 {
		return state, true
	}

	// The value has its start, the sum of the counts that are inside in full, and the counts. The state has the sum of
	// all counts. A window without sub-windows has one count in Redis, and in the state none, as that is the sum.
	start := r.word()
	total := r.word()
	counts := state[2:]
	sum := int64(0)
	for i := range p.valueBytes/wordBytes - 2 {
		n := r.word()
		if i < len(counts) {
			counts[i] = n
		}
		if i < int(p.WholeCounts) {
			sum += n
		} else if n > step.MaxInt {
			return state, false
		}
	}
	aligned := cell.Policy.FromFirst || start%p.SubWindow == 0
	sound = aligned && sum == total && max(start, total) <= step.MaxInt
	if len(counts) > 0 {
		total += counts[len(counts)-1]
	}
	if sound {
		cell.Policy.SetWindow(state, start, total)
	}
	return state, sound
}

// levelDigits is the length of a level in replies.
const levelDigits = 16

// parseLog reads what a script says of a log. It is not sound if the instants are not those of one that was in order.
func (r *reply) parseLog(cell *step.Cell, now int64) (log step.LogSummary, sound bool) {
	log = step.LogSummary{Count: r.word(), FreesOne: r.word(), FreesAll: r.word(), FreesAsked: r.word()}
	if log.Count == 0 {
		return step.LogSummary{}, true
	}
	// A server's clock may have stepped back by less than a period since the last of them.
	from := now - cell.Policy.Period
	inside := log.FreesOne > from && log.FreesOne <= log.FreesAll && log.FreesAll <= now+cell.Policy.Period
	asked := cell.Asked()
	limit := cell.Policy.Capacity()
	waits := asked > limit || log.Count+asked <= limit || log.FreesAsked > from && log.FreesAsked <= log.FreesAll
	return log, inside && waits && log.Count <= step.MaxLog
}

// answerLog is answerCell for a log, of which the script has read what is asked.
func (q *question) answerLog(cell *step.Cell, now int64, flags byte, r *reply, charge bool) {
	// Without a value nothing was used, and refused units are all that there is after that.
	var before step.LogSummary
	denied := step.LogSummary{Count: min(cell.Asked(), step.MaxLog), FreesOne: now, FreesAll: now, FreesAsked: now}
	sound := true
	deniedSound := true
	counts := cell.Policy.CountDenied
	if flags&cellNew == 0 {
		before, sound = r.parseLog(cell, now)
	}
	if flags&cellNew == 0 && counts {
		denied, deniedSound = r.parseLog(cell, now)
	}
	if !sound || !deniedSound {
		q.err = errDamaged
		return
	}
	cell.ReadLog(before, now, charge)
	if !q.allowed && counts && cell.Units > 0 {
		// What is left is read after the refused attempt; whether it was refused, before.
		short := cell.Shortfall
		cell.ReadLog(denied, now, false)
		cell.Shortfall = short
	}
}

// answerSettled answers a cell that was settled.
func (q *question) answerSettled(cell *step.Cell, now int64, r *reply) {
	attached := cell.Policy.Attachment.(*scriptPolicy)
	flags := r.take(1)[0]
	switch {
	case flags&cellForeign != 0:
		q.err = cmp.Or(q.err, errForeign)
		cell.Shortfall = undecided
	case attached.Algorithm == step.Log:
		// The script says how many counted before, for what had no room, and what there is after that.
		n := cell.Units
		room := max(cell.Policy.Capacity()-r.word(), 0)
		cell.Units = 1 // the reading is about one more
		after, sound := r.parseLog(cell, now)
		if sound {
			cell.ReadLog(after, now, false)
		} else {
			q.err = errDamaged
		}
		cell.Units = n
		cell.Shortfall = max(n-room, 0)
	case attached.Algorithm == step.Level || attached.Algorithm == step.Window:
		var room [16]int64
		state, sound := attached.parseState(cell, room[:], now, flags, r)
		if !sound {
			q.err = errDamaged
			return
		}
		cell.Settle(state, now)
	default:
		panic(step.Missing(attached.Algorithm))
	}
	q.allowed = q.allowed && cell.Shortfall == 0
}
