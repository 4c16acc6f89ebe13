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

//go:embed main.lua
var mainPart string

// A script answers questions whose policies use some of the algorithms. It holds
// the twins of just those, for Redis runs all of a script's definitions each time.
type script struct {
	source any // a string, as the client wants it
	sha    any
}

// algorithms is a set of them.
type algorithms uint8

func (a algorithms) with(x step.Algorithm) algorithms { return a | 1<<x }

// scripts has the script of each set.
type scripts struct{ made sync.Map }

func (m *scripts) of(a algorithms) *script {
	if s, ok := m.made.Load(a); ok {
		return s.(*script) //nolint:forcetypeassert // nothing else is stored
	}
	var b strings.Builder
	b.WriteString(prelude)
	for x := step.TokenBucket; x <= step.MinInterval; x++ {
		if a&(1<<x) != 0 {
			b.WriteString(x.Twin())
		}
	}
	b.WriteString(mainPart)
	sum := sha1.Sum([]byte(b.String())) //nolint:gosec // as above
	s, _ := m.made.LoadOrStore(a, &script{b.String(), hex.EncodeToString(sum[:])})
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
	algorithms algorithms
	keys       []string
	questions  []byte
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
func constants(cell *core.Cell) any {
	b := []byte{byte(cell.Step.Numbers().Algorithm), 0}
	if cell.CountDenied {
		b[1] = 1
	}
	for _, x := range cell.Step.Constants() {
		b = step.AppendWord(b, x)
	}
	return string(b)
}

// A reply is what the script returned and was not read yet.
type reply struct {
	rest []byte
	at   int64
}

var errReply = errors.New("headgate: the script's reply is cut short")

func newReply(s string) (reply, error) {
	if len(s) < step.WordBytes {
		return reply{}, errReply
	}
	b := []byte(s)
	return reply{rest: b[step.WordBytes:], at: step.Word(b)}, nil
}

func (r *reply) take(n int) ([]byte, error) {
	if n > len(r.rest) {
		return nil, errReply
	}
	b := r.rest[:n]
	r.rest = r.rest[n:]
	return b, nil
}

func (r *reply) byte() (byte, error) {
	b, err := r.take(1)
	if err != nil {
		return 0, err
	}
	return b[0], nil
}

func (r *reply) text() ([]byte, error) {
	b, err := r.take(2)
	if err != nil {
		return nil, err
	}
	return r.take(int(b[0])<<8 | int(b[1]))
}

// question reads whether a question was answered with allowed; an error may be the
// question's alone.
func (r *reply) question() (allowed bool, err error) {
	status, err := r.byte()
	if err != nil {
		return false, err
	}
	if status > 1 {
		text, err := r.text()
		if err != nil {
			return false, err
		}
		return false, fmt.Errorf("headgate: Redis could not decide: %s", text)
	}
	return status == 1, nil
}

// result reads the answer to the charges.
func (r *reply) result(charges []core.Charge) (result core.Result, err error) {
	result.At, result.Source = r.at, core.SourceStore
	if result.Allowed, err = r.question(); err != nil {
		return core.Result{}, err
	}
	for i := range charges {
		need := charges[i].N
		if result.Allowed {
			need = 0
		}
		cells := charges[i].Limiter.Cells()
		for j := range cells {
			admitted, err := r.byte()
			if err != nil {
				return core.Result{}, err
			}
			state, err := r.text()
			if err != nil {
				return core.Result{}, err
			}
			reading, err := step.ReadTwin(cells[j].Step, state, r.at, need)
			if err != nil {
				return core.Result{}, err
			}
			result.Add(admitted == 1, reading)
		}
	}
	return result, nil
}

// uncovered reads the answer to a settlement.
func (r *reply) uncovered(s *core.Settlement) error {
	if _, err := r.question(); err != nil {
		return err
	}
	for range s.Limiter.Cells() {
		b, err := r.take(step.WordBytes)
		if err != nil {
			return err
		}
		s.Uncovered = max(s.Uncovered, step.Word(b))
	}
	return nil
}
