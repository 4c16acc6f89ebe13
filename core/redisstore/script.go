package redisstore

import (
	"crypto/sha1" //nolint:gosec // it is how Redis names scripts
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/step"
)

//go:embed prelude.lua
var prelude string

//go:embed save.lua
var save string

//go:embed main.lua
var mainPart string

// A script answers questions whose policies use some of the algorithms. It holds
// the twins of just those, for Redis runs all of a script's definitions each time.
type script struct {
	source any // a string, as the client wants it
	sha    any
}

func newScript(source string) script {
	sum := sha1.Sum([]byte(source)) //nolint:gosec // as above
	return script{source, hex.EncodeToString(sum[:])}
}

// algorithms is a set of them.
type algorithms uint8

func (a algorithms) with(x step.Algorithm) algorithms { return a | 1<<x }

// scripts has the script of each set of algorithms, and of each shape of a limiter.
type scripts struct{ made sync.Map }

func (m *scripts) of(a algorithms) *script {
	if s, ok := m.made.Load(a); ok {
		return s.(*script) //nolint:forcetypeassert // nothing else is stored
	}
	var b strings.Builder
	b.WriteString(prelude)
	b.WriteString("local twins = {}\n")
	for x := step.TokenBucket; x <= step.MinInterval; x++ {
		if a&(1<<x) != 0 {
			b.WriteString(x.Twin())
		}
	}
	b.WriteString(save)
	b.WriteString(mainPart)
	return m.make(a, b.String())
}

func (m *scripts) make(what any, source string) *script {
	made := newScript(source)
	s, _ := m.made.LoadOrStore(what, &made)
	return s.(*script) //nolint:forcetypeassert // as above
}

// Modes of a question, as in main.lua.
const (
	modeAsk = iota
	modePeek
	modeSettle
	modeDeny
)

// A call is the arguments of one run of the script.
type call struct {
	flat       *script // nil: that of the algorithms
	algorithms algorithms
	keys       []string
	questions  []byte
	asked      int          // questions for a flat script
	cells      []*core.Cell // one for each policy
	constants  []any        // of the policies: encoded strings
	instant    string       // empty: the server's; tests have their own
	words      []any        // of the command
}

var calls = sync.Pool{New: func() any { return new(call) }}

func newCall() *call { return calls.Get().(*call) }

func (c *call) free() {
	clear(c.keys)
	clear(c.words)
	*c = call{
		keys: c.keys[:0], questions: c.questions[:0], cells: c.cells[:0],
		constants: c.constants[:0], words: c.words[:0],
	}
	calls.Put(c)
}

// ask adds a question of one limiter to those of the same that a flat script answers.
func (c *call) ask(n int64) {
	if n != 1 && len(c.questions) == 0 {
		for range c.asked {
			c.number(1)
		}
	}
	if n != 1 || len(c.questions) > 0 {
		c.number(n)
	}
	c.asked++
}

// begin starts a question of so many parts.
func (c *call) begin(mode byte, parts int) {
	c.questions = append(c.questions, mode, byte(parts))
}

// add adds a part: one cell of a charge, whose name is among the keys.
func (c *call) add(cell *core.Cell, constants any, n int64) {
	i := slices.IndexFunc(c.cells, func(p *core.Cell) bool { return p.Step == cell.Step })
	if i < 0 {
		i = len(c.cells)
		c.cells = append(c.cells, cell)
		c.constants = append(c.constants, constants)
		c.algorithms = c.algorithms.with(cell.Step.Numbers().Algorithm)
	}
	c.questions = append(c.questions, byte(i))
	c.number(n)
}

func (c *call) number(x int64) { c.questions = step.AppendWord(c.questions, x) }

// command returns the words of EVALSHA or EVAL.
func (c *call) command(name string, script any) []any {
	c.words = append(c.words[:0], name, script, len(c.keys))
	for _, key := range c.keys {
		c.words = append(c.words, key)
	}
	c.words = append(c.words, c.instant, c.questions)
	c.words = append(c.words, c.constants...)
	return c.words
}

// constants is how the script is told of a policy.
func constants(cell *core.Cell) string {
	b := []byte{byte(cell.Step.Numbers().Algorithm), 0}
	if cell.CountDenied {
		b[1] = 1
	}
	if ranged(cell) {
		b[1] += 2
	}
	for _, x := range cell.Step.Constants() {
		b = step.AppendWord(b, x)
	}
	return string(b)
}

// ranged reports whether the script reads and writes parts of a value: a log of many
// units.
func ranged(cell *core.Cell) bool {
	m := cell.Step.Numbers()
	return m.Algorithm == step.SlidingLog && m.Limit > 64
}

// A reply is what the script returned and was not read yet.
type reply struct {
	rest string
	at   int64
}

var errReply = errors.New("headgate: the script's reply is cut short")

func newReply(s string) (reply, error) {
	if len(s) < step.WordBytes {
		return reply{}, errReply
	}
	return reply{rest: s[step.WordBytes:], at: step.Word(s)}, nil
}

func (r *reply) take(n int) (string, error) {
	if n > len(r.rest) {
		return "", errReply
	}
	s := r.rest[:n]
	r.rest = r.rest[n:]
	return s, nil
}

// What the byte before each part's answer says, as in main.lua.
const (
	partAdmitted = 1 << iota // by its policy
	partAllowed              // the question
	partState                // follows
	partFailed               // with the whole question
)

// part reads that byte. The error may be the question's alone.
func (r *reply) part() (byte, error) {
	s, err := r.take(1)
	if err != nil {
		return 0, err
	}
	if s[0] != partFailed {
		return s[0], nil
	}
	if s, err = r.take(2); err == nil {
		s, err = r.take(int(s[0])<<8 | int(s[1]))
	}
	if err != nil {
		return 0, err
	}
	if s == "" {
		s = "the key holds a value of another type"
	}
	return 0, fmt.Errorf("headgate: Redis could not decide: %s", s)
}

// result reads the answer to the charges.
func (r *reply) result(charges []core.Charge) (result core.Result, err error) {
	result.At, result.Source = r.at, core.SourceStore
	for i := range charges {
		cells := charges[i].Limiter.Cells()
		for j := range cells {
			part, err := r.part()
			if err != nil {
				return core.Result{}, err
			}
			need := charges[i].N
			if result.Allowed = part&partAllowed != 0; result.Allowed {
				need = 0
			}
			var state string
			if part&partState != 0 {
				if state, err = r.take(step.ReplyBytes(cells[j].Step)); err != nil {
					return core.Result{}, err
				}
			}
			reading, err := step.ReadTwin(cells[j].Step, state, r.at, need)
			if err != nil {
				return core.Result{}, err
			}
			result.Add(part&partAdmitted != 0, reading)
		}
	}
	return result, nil
}

// uncovered reads the answer to a settlement of so many parts.
func (r *reply) uncovered(parts int) (units int64, err error) {
	for range parts {
		if _, err := r.part(); err != nil {
			return 0, err
		}
		word, err := r.take(step.WordBytes)
		if err != nil {
			return 0, err
		}
		units = max(units, step.Word(word))
	}
	return units, nil
}
