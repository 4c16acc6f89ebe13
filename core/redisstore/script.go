package redisstore

import (
	"crypto/sha1" //nolint:gosec // it is how Redis names scripts
	_ "embed"
	"encoding/hex"
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

// The commands that run a script: by its source, and by its name.
const (
	eval    = "eval"
	evalSHA = "evalsha"
)

// A script is the source of a Lua script and the SHA-1 by which Redis knows it: strings,
// in the type that the client wants.
type script struct{ source, sha any }

func newScript(source string) script {
	sum := sha1.Sum([]byte(source)) //nolint:gosec // as above
	return script{source, hex.EncodeToString(sum[:])}
}

// An algorithmSet has a bit for each algorithm.
type algorithmSet uint32

func (a algorithmSet) with(x step.Algorithm) algorithmSet { return a | 1<<x }
func (a algorithmSet) has(x step.Algorithm) bool          { return a&(1<<x) != 0 }

// scripts has the script of each set of algorithms, and of each shape of a limiter.
type scripts struct{ made sync.Map }

// of returns the script for questions whose policies use these algorithms. It has the
// twins of no others, as Redis runs all of a script's definitions each time.
func (m *scripts) of(a algorithmSet) *script {
	if s, ok := m.made.Load(a); ok {
		return s.(*script) //nolint:forcetypeassert // nothing else is stored
	}
	return m.make(a, mainSource(a))
}

func mainSource(a algorithmSet) string {
	var b strings.Builder
	b.WriteString(prelude)
	b.WriteString("local twins = {}\n")
	for _, x := range scripted {
		if a.has(x) {
			b.WriteString(x.Twin())
		}
	}
	b.WriteString(save)
	b.WriteString(mainPart)
	return b.String()
}

// scripted are the algorithms that have a twin, in the order of their numbers.
var scripted = scriptedAlgorithms() //nolint:gochecknoglobals // never changed

func scriptedAlgorithms() (all []step.Algorithm) {
	for x := step.TokenBucket; x.String() != "unknown"; x++ {
		if x.Twin() != "" {
			all = append(all, x)
		}
	}
	return all
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

// A call has the arguments for one run of a script.
type call struct {
	flat       *script // nil: the script of the algorithms
	algorithms algorithmSet
	keys       []string
	questions  []byte
	flatCount  int          // questions for a flat script
	cells      []*core.Cell // one for each policy
	constants  []any        // of the policies: encoded strings
	instant    string       // for tests: the time to use instead of the server's
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

// addFlat adds a question for a flat script, whose limiter and mode are known. If n is 1 in
// all of them, no n is sent.
func (c *call) addFlat(n int64) {
	if n != 1 && len(c.questions) == 0 {
		for range c.flatCount {
			c.number(1)
		}
	}
	if n != 1 || len(c.questions) > 0 {
		c.number(n)
	}
	c.flatCount++
}

// begin adds the head of a question with a number of parts.
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

// constants encodes a policy for the scripts, as prelude.lua describes.
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

// nearEntries is how many entries of a long log a script reads at first, and the largest
// limit whose log it reads and writes as a whole; as in slidinglog.lua.
const nearEntries = 64

// ranged reports whether the script reads and writes parts of a value: a long log.
func ranged(cell *core.Cell) bool {
	m := cell.Step.Numbers()
	return m.Algorithm == step.SlidingLog && m.Limit > nearEntries
}
