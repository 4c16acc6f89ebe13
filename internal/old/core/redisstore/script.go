package redisstore

import (
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"hash/fnv"
	"hash/maphash"
	"slices"
	"strings"
	"sync"

	"github.com/headgate/headgate/internal/old/core/step"
	"github.com/headgate/headgate/internal/old/core/store"
)

//go:embed lua
var luaFiles embed.FS

// scriptFiles are the files of the script that answers questions, one after the other. The head of the
// first describes the arguments. Those in rare are run only if a question needs them.
var scriptFiles = strings.Fields(`arguments
	tokenbucket fixedwindow slidingwindow slidinglog mininterval decide
	rare/words rare/tokenbucket rare/fixedwindow rare/slidingwindow rare/slidinglog rare/mininterval
	rare/variants rare/find rare/room rare/apart rare/settle rare/questions`)

// scriptSource is the text of the script. Errors of Redis name its lines.
var scriptSource = func() string {
	var b strings.Builder
	for _, name := range scriptFiles {
		text, err := luaFiles.ReadFile("lua/" + name + ".lua")
		if err != nil {
			panic(err)
		}
		b.Write(text)
	}
	return b.String()
}()

// decideScript answers questions.
var decideScript = newScript(scriptSource)

// The commands that run a script: by its source, and by its name.
const (
	eval    = "eval"
	evalSHA = "evalsha"
)

// A script is the source of a Lua script and the SHA-1 by which Redis knows it: strings,
// in the type that the client wants.
type script struct{ source, sha any }

func newScript(source string) script {
	sum := sha1.Sum([]byte(source))
	return script{source, hex.EncodeToString(sum[:])}
}

// A binary is an argument that is bytes. Its pointer is one word, and so an any without an
// allocation.
type binary []byte

// MarshalBinary implements [encoding.BinaryMarshaler], which the client looks for.
func (b *binary) MarshalBinary() ([]byte, error) { return *b, nil }

// scripted is the number of algorithms that the script knows: those with a state.
const scripted = int(step.Unlimited) - 1

// A call has the arguments for one run of the script.
type call struct {
	instant   string // for tests: the time to use instead of the server's
	questions binary // after a byte for each algorithm, and another
	keys      []string
	index     [256]byte  // in which key is at its hash or after it, from 1
	limiters  []*limiter // that are asked
	places    []int      // where the numbers of each are, from 0
	size      int        // of the numbers of all
	numbers   binary     // room for them
	words     []any      // of the command
}

var calls = sync.Pool{New: func() any { return new(call) }}

func newCall() *call {
	c := calls.Get().(*call)
	var head [scripted + 1]byte
	c.questions = append(c.questions, head[:]...)
	return c
}

func (c *call) free() {
	clear(c.keys)
	clear(c.limiters)
	clear(c.words)
	*c = call{
		questions: c.questions[:0], keys: c.keys[:0], limiters: c.limiters[:0], places: c.places[:0],
		numbers: c.numbers[:0], words: c.words[:0],
	}
	calls.Put(c)
}

// cellBytes is the length of a cell in the script, but for the words that may follow.
const cellBytes = 10

// A cell is what the script is told about one, beside its policy.
type cell struct {
	mode   byte
	more   int    // cells of the question that follow
	value  string // where its state is
	place  int    // where the policy's tag and numbers are, from 0
	n      int64  // units
	single bool   // the question is about one value
}

// cell adds one. It returns where the tag of the next policy of the limiter is.
func (c *call) cell(p *policy, of *cell) (next int) {
	place, several, n := of.place+1, byte(1), byte(0)
	if of.single {
		several = 0
	}
	if of.n < 256 && of.mode != modeSettle { // 0 too is a word
		n = byte(of.n)
	}
	c.questions = append(c.questions, of.mode, byte(of.more), p.algorithm, p.denied, byte(p.form), c.key(of.value),
		byte(place>>8), byte(place), n, several)
	if n == 0 {
		c.number(of.n)
	}
	return of.place + p.size
}

// add adds a limiter, and returns where its numbers are.
func (c *call) add(l *limiter) (place int) {
	if i := slices.Index(c.limiters, l); i >= 0 {
		return c.places[i]
	}
	place = c.size
	c.limiters = append(c.limiters, l)
	c.places = append(c.places, place)
	for i := range l.policies {
		p := &l.policies[i]
		c.size += p.size
		use := &c.questions[p.algorithm-1]
		*use = max(*use, 1)
		if p.form == formInParts {
			*use = 2
		}
	}
	return place
}

// key returns which of the keys that is, from 1. Questions about one key share it.
func (c *call) key(name string) byte {
	for i := byte(maphash.String(seed, name)); ; i++ {
		switch k := c.index[i]; {
		case k == 0:
			c.keys = append(c.keys, name)
			c.index[i] = byte(len(c.keys))
			return c.index[i]
		case c.keys[k-1] == name:
			return k
		}
	}
}

var seed = maphash.MakeSeed()

func (c *call) number(x int64) { c.questions = step.AppendWord(c.questions, x) }

// command returns the words of EVALSHA or EVAL.
func (c *call) command(name string, script any) []any {
	c.words = append(c.words[:0], name, script, len(c.keys))
	for _, key := range c.keys {
		c.words = append(c.words, key)
	}
	c.words = append(c.words, c.instant, &c.questions)
	if len(c.limiters) == 1 { // mostly, if there is one question
		c.words = append(c.words, c.limiters[0].numbers)
		return c.words
	}
	for _, l := range c.limiters {
		c.numbers = append(c.numbers, l.numbers.(string)...)
	}
	c.words = append(c.words, &c.numbers)
	return c.words
}

// A form is how the state of a policy is stored: in a record of a value that other policies have
// records in, of which it is the last or not; or in a value of its own, which the script reads as a
// whole or in parts.
type form byte

const (
	formMore form = iota
	formLast
	formWhole
	formInParts
)

// A policy is what the script is told about one, beside its numbers.
type policy struct {
	index     int // in the limiter's Spec
	value     int // which of the limiter's values has its state
	algorithm byte
	denied    byte // 1 if it counts what is refused
	form      form
	size      int // of its tag and numbers, in bytes
}

// policiesOf returns what the script is told about the policies of a limiter, in the order of their
// records, then those that have a value of their own; and the tags and the numbers of these, as
// words in a string.
func policiesOf(spec *store.Spec) (policies []policy, numbers any) {
	var b []byte
	for _, logs := range []bool{false, true} {
		last := -1
		for i := range spec.Policies {
			s := spec.Policies[i].Step
			m, before := s.Numbers(), len(b)
			if m.Algorithm == step.SlidingLog != logs {
				continue
			}
			b = step.AppendWord(b, tagOf(&spec.Policies[i]))
			for _, x := range s.Constants() {
				b = step.AppendWord(b, x)
			}
			p := policy{index: i, algorithm: byte(m.Algorithm), size: len(b) - before}
			if m.CountDenied {
				p.denied = 1
			}
			switch {
			case !logs:
				last = len(policies)
			case m.Limit > nearEntries:
				p.form = formInParts
			default:
				p.form = formWhole
			}
			policies = append(policies, p)
		}
		if last >= 0 {
			policies[last].form = formLast
		}
	}
	for i := 1; i < len(policies); i++ {
		policies[i].value = policies[i-1].value
		if policies[i-1].form != formMore {
			policies[i].value++
		}
	}
	return policies, string(b)
}

// lengthBits is how many bits of a tag are a length; as LENGTHS in the script.
const lengthBits = 24

// tagOf returns the word before the state of a policy in a record: 26 bits of a hash of its name, 3
// of the algorithm, and in lengthBits the length of the value under its numbers. Those of
// policies of limiters of one name are compared when these are made: see tags. Two that releases do not
// have in common count together if their hashes are equal, which is so once in 2^26.
func tagOf(p *store.Policy) int64 {
	h := fnv.New64a()
	h.Write([]byte(p.Name))
	policy := int64(h.Sum64() % (1 << 26))
	return (policy<<3|int64(p.Step.Numbers().Algorithm))<<lengthBits | int64(step.ValueBytes(p.Step))
}

// nearEntries is how many entries of a long log the script reads at first, and the largest
// limit whose log it reads as a whole; as in slidinglog.lua.
const nearEntries = 64
