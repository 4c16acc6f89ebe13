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

func appendWord(b []byte, x int64) []byte {
	return append(b, byte(x>>48), byte(x>>40), byte(x>>32), byte(x>>24), byte(x>>16), byte(x>>8), byte(x))
}

// bit returns 1 if something is so, and else 0.
func bit(is bool) int64 {
	if is {
		return 1
	}
	return 0
}

func words(xs ...int64) (b []byte) {
	for _, x := range xs {
		b = appendWord(b, x)
	}
	return b
}

// A call has the arguments of one run of a script. Its buffers are used again.
type call struct {
	words     []any // of the command
	keys      []argument
	cells     argument
	now       argument // in tests
	registers [registerCount + 1]struct {
		policy *policy
		units  int64
	}
	tag []byte // of the latest key
}

// An argument is bytes. Its pointer is an any without an allocation.
type argument []byte

// MarshalBinary implements [encoding.BinaryMarshaler], which the client looks for.
func (a *argument) MarshalBinary() ([]byte, error) { return *a, nil }

var calls = sync.Pool{New: func() any { return new(call) }}

func (c *call) free() {
	clear(c.registers[:])
	calls.Put(c)
}

// newCall returns the call that asks questions, or settles, for one hash slot.
func (s *Decider) newCall(batch []*question) *call {
	c := calls.Get().(*call)
	c.keys, c.cells, c.now = c.keys[:0], c.cells[:0], c.now[:0]
	for _, q := range batch {
		for i := range q.cells {
			cell := &q.cells[i]
			p := cell.Policy.Attachment.(*policy)
			if i == 0 || q.cells[i-1].Key != cell.Key {
				c.tag = s.names.AppendTag(c.tag[:0], cell.Key.Reveal())
			}
			c.key(p)
			if q.mode == step.Settle {
				c.cells = p.corrections(append(c.cells, byte(p.Algorithm)), cell)
			} else {
				c.ask(p, cell, q.mode, i < len(q.cells)-1)
			}
		}
	}
	if s.instant != nil {
		c.now = s.instant(c.now)
	}
	return c
}

// key adds the name of a cell of the latest key.
func (c *call) key(p *policy) {
	n := len(c.keys)
	if n == cap(c.keys) {
		c.keys = append(c.keys, nil)
	}
	c.keys = c.keys[:n+1]
	c.keys[n] = append(append(c.keys[n][:0], c.tag...), p.suffix...)
}

// ask adds what is asked about a cell, with its numbers if they are not those of the cell before it in the register.
func (c *call) ask(p *policy, cell *step.Cell, mode step.Mode, more bool) {
	units, register := cell.Asked(), &c.registers[p.register]
	asks := mode == step.Peek || cell.Units == 0
	c.cells = append(c.cells, byte(p.Algorithm), byte(bit(asks)), byte(bit(more)), p.register, 0)
	if register.policy != p || register.units != units {
		register.policy, register.units = p, units
		c.cells = p.numbers(c.cells, cell.Policy, units)
	}
}

// command returns the words of EVALSHA or EVAL. The first key of a Cluster is a string, in which the client looks for
// the hash slot.
func (c *call) command(name, script any, cluster bool) []any {
	c.words = append(c.words[:0], name, script, len(c.keys))
	for i := range c.keys {
		c.words = append(c.words, &c.keys[i])
	}
	if cluster {
		c.words[3] = string(c.keys[0])
	}
	c.words = append(c.words, &c.cells)
	if len(c.now) > 0 {
		c.words = append(c.words, &c.now)
	}
	return c.words
}

// A reply is the part of a script's reply that was not read yet.
type reply string

var (
	errReply = errors.New("headgate: the reply of the script is too short")

	errOtherWindow = errors.New("headgate: the clock of Redis shows another window of a calendar than was asked about")

	errForeign = errors.New("headgate: Redis has a value under the name of a limit that is none of headgate's: delete it")

	errDamaged = errors.New("headgate: Redis has a value of a limit whose numbers contradict each other: delete it")
)

// take returns the next n bytes, or zeros if they are missing.
func (r *reply) take(n int) string {
	if len(*r) < n {
		*r = ""
		return string(make([]byte, n))
	}
	s := (*r)[:n]
	*r = (*r)[n:]
	return string(s)
}

func (r *reply) word() int64 { return word(r.take(wordBytes)) }

func word(s string) int64 {
	_ = s[6]
	return int64(s[6]) | int64(s[5])<<8 | int64(s[4])<<16 | int64(s[3])<<24 | int64(s[2])<<32 | int64(s[1])<<40 | int64(s[0])<<48
}

// The bits of the byte before the answer of each cell, as in the scripts.
const (
	cellAdmits = 1 << iota
	questionAllowed
	cellNew
	cellForeign
)

// finish answers the questions of a call.
func (s *Decider) finish(batch []*question, text string) error {
	r := reply(text)
	now := r.word()
	if now > step.MaxInt {
		return errReply
	}
	for _, q := range batch {
		q.allowed, q.err = true, nil
		for i := range q.cells {
			if r == "" {
				return errReply
			}
			c := &q.cells[i]
			if q.mode == step.Settle {
				q.settled(c, now, &r)
			} else {
				q.answer(c, now, &r)
			}
			if c.Shortfall != undecided {
				c.Instant, c.Source = now, step.SourceStore
			} else if c.Policy.Attachment.(*policy).calendar() && !errors.Is(q.err, errDamaged) { // or its value is foreign
				q.err = errOtherWindow
				s.ahead.Store(now - time.Now().UnixMicro())
			}
		}
	}
	return nil
}

// undecided is the Shortfall of a cell that the script has left alone.
const undecided = -1

// clock returns what the clock of the server shows, as far as is known: what this one does, unless they are half of a
// window of a calendar or more apart.
func (s *Decider) clock() int64 { return time.Now().UnixMicro() + s.ahead.Load() }

// answer reads the answer of a cell: the value before, on which the step is repeated.
func (q *question) answer(c *step.Cell, now int64, r *reply) {
	p, flags := c.Policy.Attachment.(*policy), r.take(1)[0]
	if flags&cellForeign != 0 {
		q.allowed, q.err, c.Shortfall = false, cmp.Or(q.err, errForeign), undecided
		return
	}
	q.allowed = flags&questionAllowed != 0
	charge := q.allowed && q.mode == step.Allow
	switch p.Algorithm {
	case step.Log:
		q.answerLog(c, now, flags, r, charge)
	case step.Level, step.Window:
		var room [16]int64
		state, sound := p.state(c, room[:], now, flags, r)
		if !sound {
			q.err = errDamaged
			return
		}
		if !c.Take(state, now, charge) && flags&cellAdmits != 0 {
			c.Shortfall, c.RetryAfter = 0, 0 // rounded doubles of the script can admit what is 1e-16 of a unit too much
		}
		if !q.allowed {
			c.CountRefused(state, now, step.Allow)
		}
	default:
		panic(step.Missing(p.Algorithm))
	}
}

// state returns the state of a level or a window as it was before. It is not sound if no script can have written it:
// the script itself looks only at the numbers that it needs.
func (p *policy) state(c *step.Cell, room []int64, now int64, flags byte, r *reply) (state []int64, sound bool) {
	switch p.Algorithm {
	case step.Level:
		return r.level(c, room[:2], now, flags)
	case step.Window:
		return p.window(c, room, flags, r)
	default:
		panic(step.Missing(p.Algorithm))
	}
}

// level is state for a level.
func (r *reply) level(c *step.Cell, state []int64, now int64, flags byte) (_ []int64, sound bool) {
	if flags&cellNew != 0 {
		return state, true
	}
	level, err := strconv.ParseUint(r.take(levelDigits), 10, bits.Len64(step.MaxInt))
	if err == nil {
		c.Policy.SetLevel(state, now, int64(level))
	}
	return state, err == nil
}

// window is state for a window.
func (p *policy) window(c *step.Cell, room []int64, flags byte, r *reply) (state []int64, sound bool) {
	size, _ := c.Policy.Lengths()
	state = append(room[:0], make([]int64, size)...)
	if flags&cellNew != 0 {
		return state, true
	}
	start, total := r.word(), r.word()
	counts, sum := state[2:], int64(0)
	for i := range p.size/wordBytes - 2 {
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
	aligned := c.Policy.FromFirst || start%p.SubWindow == 0
	sound = aligned && sum == total && max(start, total) <= step.MaxInt
	if len(counts) > 0 {
		total += counts[len(counts)-1]
	}
	if sound {
		c.Policy.SetWindow(state, start, total)
	}
	return state, sound
}

// levelDigits is the length of a level in replies.
const levelDigits = 16

// log reads what a script says of a log. It is not sound if the instants are not those of one that was in order.
func (r *reply) log(c *step.Cell, now int64) (l step.LogSummary, sound bool) {
	l = step.LogSummary{Count: r.word(), FreesOne: r.word(), FreesAll: r.word(), FreesAsked: r.word()}
	if l.Count == 0 {
		return step.LogSummary{}, true
	}
	from := now - c.Policy.Period
	inside := l.FreesOne > from && l.FreesOne <= l.FreesAll && l.FreesAll <= now+c.Policy.Period
	asked, limit := c.Asked(), c.Policy.Capacity()
	waits := asked > limit || l.Count+asked <= limit || l.FreesAsked > from && l.FreesAsked <= l.FreesAll
	return l, inside && waits && l.Count <= step.MaxLog
}

// answerLog is answer for a log, of which the script has read what is asked.
func (q *question) answerLog(c *step.Cell, now int64, flags byte, r *reply, charge bool) {
	var before step.LogSummary
	denied := step.LogSummary{Count: min(c.Asked(), step.MaxLog), FreesOne: now, FreesAll: now, FreesAsked: now}
	sound, deniedSound := true, true
	counts := c.Policy.CountDenied
	if flags&cellNew == 0 {
		before, sound = r.log(c, now)
	}
	if flags&cellNew == 0 && counts {
		denied, deniedSound = r.log(c, now)
	}
	if !sound || !deniedSound {
		q.err = errDamaged
		return
	}
	c.ReadLog(before, now, charge)
	if !q.allowed && counts && c.Units > 0 {
		short := c.Shortfall
		c.ReadLog(denied, now, false)
		c.Shortfall = short
	}
}

// settled reads the answer of a cell that was settled.
func (q *question) settled(c *step.Cell, now int64, r *reply) {
	p, flags := c.Policy.Attachment.(*policy), r.take(1)[0]
	switch {
	case flags&cellForeign != 0:
		q.err, c.Shortfall = cmp.Or(q.err, errForeign), undecided
	case p.Algorithm == step.Log:
		n, room := c.Units, max(c.Policy.Capacity()-r.word(), 0)
		c.Units = 1 // the reading is about one more
		after, sound := r.log(c, now)
		if sound {
			c.ReadLog(after, now, false)
		} else {
			q.err = errDamaged
		}
		c.Units = n
		c.Shortfall = max(n-room, 0)
	case p.Algorithm == step.Level || p.Algorithm == step.Window:
		var room [16]int64
		state, sound := p.state(c, room[:], now, flags, r)
		if !sound {
			q.err = errDamaged
			return
		}
		c.Settle(state, now)
	default:
		panic(step.Missing(p.Algorithm))
	}
	q.allowed = q.allowed && c.Shortfall == 0
}
