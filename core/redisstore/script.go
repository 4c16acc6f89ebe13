package redisstore

import (
	"crypto/sha1" //nolint:gosec // it is how Redis names scripts
	_ "embed"
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"hash/maphash"
	"slices"
	"sync"

	"github.com/headgate/headgate/core/step"
	"github.com/headgate/headgate/core/store"
)

//go:embed script.lua
var scriptSource string

// decideScript is the script that answers questions. Its head describes them and the arguments;
// lua_test.go puts it together.
var decideScript = newScript(scriptSource) //nolint:gochecknoglobals // changed by tests only

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
	questions binary // after a byte for each algorithm
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
	var unused [scripted]byte
	c.questions = append(c.questions, unused[:]...)
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

// The bytes of the head of a question, and of a part: without n, which is then 1; with n; and with
// at and actual too.
const (
	headBytes       = 4
	partBytes       = 6
	unitsBytes      = partBytes + step.WordBytes
	settlementBytes = unitsBytes + 2*step.WordBytes
)

// begin adds the head of a question, whose parts have so many bytes, and which is about several
// values or not.
func (c *call) begin(mode byte, parts, bytes int, several bool) {
	apart := byte(0)
	if several {
		apart = 1
	}
	c.questions = append(c.questions, mode, byte(parts), byte(bytes), apart)
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

// part adds the beginning of a part, about a value, where the policy's tag and numbers are at that
// place. It returns where those of the next policy of the limiter are.
func (c *call) part(p *policy, value string, place int) (next int) {
	numbers := place + step.WordBytes + 1
	c.questions = append(c.questions, p.algorithm, p.denied, byte(p.form), c.key(value), byte(numbers>>8), byte(numbers))
	return place + p.size
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
		c.numbers = append(c.numbers, l.numbers.(string)...) //nolint:forcetypeassert // it is one
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
func policiesOf(spec *store.Spec) (policies []policy, numbers any, err error) {
	var b []byte
	tags := make(map[int64]string)
	for _, logs := range []bool{false, true} {
		last := -1
		for i := range spec.Policies {
			s := spec.Policies[i].Step
			m, before := s.Numbers(), len(b)
			if m.Algorithm == step.SlidingLog != logs {
				continue
			}
			tag, name := tagOf(&spec.Policies[i]), spec.Policies[i].Name
			if other, ok := tags[tag>>lengthBits]; ok && !logs { // a log has no record
				return nil, nil, fmt.Errorf("the names of policies %q and %q have the same hash: rename one", other, name)
			}
			tags[tag>>lengthBits] = name
			b = step.AppendWord(b, tag)
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
	return policies, string(b), nil
}

// lengthBits is how many bits of a tag are a length; as LENGTHS in the script.
const lengthBits = 24

// tagOf returns the word before the state of a policy in a record: 26 bits of a hash of its name, 3
// of the algorithm, and in lengthBits the length of the value under its numbers. Those of two
// policies of one limiter are compared when it is made. The hashes of two that plans or releases do not
// have in common are equal once in 2^26, and then count together.
func tagOf(p *store.Policy) int64 {
	h := fnv.New64a()
	h.Write([]byte(p.Name))
	policy := int64(h.Sum64() % (1 << 26))
	return (policy<<3|int64(p.Step.Numbers().Algorithm))<<lengthBits | int64(step.ValueBytes(p.Step))
}

// nearEntries is how many entries of a long log the script reads at first, and the largest
// limit whose log it reads as a whole; as in slidinglog.lua.
const nearEntries = 64
