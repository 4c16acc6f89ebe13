package keeper

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// StatementScript is the script of a [Statement], and BeatScript that of a [Beat].
var (
	//go:embed statement.lua
	StatementScript string

	//go:embed beat.lua
	BeatScript string
)

// A Transport runs scripts at the server. It is safe for concurrent use, and never runs one twice.
type Transport interface {
	// Shard returns the part of the server that has a key, from 0 to below Config.Shards.
	Shard(name, key string) int
	// Run runs statements of one shard, of different keys, and reads their replies or sets their errors. It returns an
	// error if the server has answered none.
	Run(ctx context.Context, all []*Statement) error
	// Beat runs a beat and reads its reply. The error is ErrGone once the transport was closed.
	Beat(ctx context.Context, b *Beat) error
}

var (
	// ErrGone is the error of a transport that was closed for good.
	ErrGone = errors.New("headgate: the client is closed")
	// ErrUnsent wraps the error of a statement that was not sent, and so has no effect.
	ErrUnsent = errors.New("headgate: not sent")
	// ErrReply is about a reply that is none of the scripts', as the key's value is none of theirs.
	ErrReply = errors.New("headgate: a script's reply is malformed")
)

// A Field is what an incarnation has stated of a key. Seq is 0 if it has stated nothing.
type Field struct{ Count, Seq int64 }

// A Holder is another incarnation that has stated slots of a key.
type Holder struct {
	ID    string
	Count int64
}

// A Statement says how many slots of a key this process holds, and asks for more. See statement.lua.
//
// Two slots held, one more wanted of at most 4, and one held by another process:
//
//	arguments  7f3a 17 2 1 4 0 1 0 ""    ID, Seq, Held, Want, Most, Waits, Delete, List, Instant; then who is dropped
//	reply      "2:16" 1 1                Found, Granted, Others; then the Holders, if they are listed: "c01d:1"
//
// The fields up to Instant are those of the question, and the others those of the reply.
type Statement struct {
	Name, Key string // of the slots
	ID        string // the incarnation
	Seq       int64  // the statement with the largest counts
	Held      int64
	Want      int64    // above Held
	Most      int64    // that all processes together may hold
	Waits     bool     // callers wait for what is wanted
	Delete    bool     // a zero is deleted: no earlier statement can be on its way
	List      bool     // the reply lists the others even if all that was wanted was granted
	Drop      []string // incarnations whose fields are deleted
	Instant   string   // of the server; empty, except in tests

	Found   Field // the own field, as it was
	Stale   bool  // a later statement came first: nothing was changed
	Granted int64
	Others  int64
	Holders []Holder
	Err     error
}

// Args returns the arguments of the script.
func (s *Statement) Args() []any {
	args := []any{s.ID, s.Seq, s.Held, s.Want, s.Most, s.Waits, s.Delete, s.List, s.Instant}
	for _, id := range s.Drop {
		args = append(args, id)
	}
	return args
}

// Read reads the reply of the script. What is wrong with it is in Err: the keeper then takes the statement for one
// whose outcome is not known.
func (s *Statement) Read(reply []any) {
	p := parser{words: reply}
	found := next[string](&p)
	if found != "-" {
		s.Found = ReadField(found, &p)
	}
	s.Granted = next[int64](&p)
	s.Others = next[int64](&p)
	s.Stale = s.Granted < 0
	if s.Stale {
		s.Granted = 0
	}
	for len(p.words) > 0 && p.err == nil {
		text := next[string](&p)
		colon := strings.LastIndexByte(text, ':')
		s.Holders = append(s.Holders, Holder{text[:max(colon, 0)], p.parse(text[colon+1:])})
	}
	s.Err = p.err
}

// ReadField reads a field of a key's hash, without its mark. It is count:seq, and behind it may be a mark,
// :asked:since:most, which only the script reads.
func ReadField(text string, into *parser) Field {
	numbers := strings.SplitN(text, ":", 3)
	return Field{into.parse(numbers[0]), into.parse(numbers[min(1, len(numbers)-1)])}
}

// ReadHolder reads a field of a key's hash as a Holder.
func ReadHolder(id, text string) (Holder, error) {
	var p parser
	f := ReadField(text, &p)
	return Holder{id, f.Count}, p.err
}

// A Beat keeps an incarnation alive. See beat.lua.
//
// The beat of a process that is alive, which learns of one death:
//
//	arguments  "" 7f3a 0 30000000 11000000 1700000000  an instant, ID, Register, TTL, Step, Known; then Seen
//	reply      live 1710000000 c01d                    State, Clock; then the Dead
type Beat struct {
	ID       string
	Register bool // it is new
	TTL      time.Duration
	Step     time.Duration // by how much it may advance the fleet's time
	Known    int64         // the fleet's time up to which deaths are known; 0: none are
	Seen     []string      // incarnations that were seen in hashes

	State string   // live, dead or absent
	Clock int64    // the fleet's time, in microseconds
	Dead  []string // that have died at that time or later

	// Histories are those of all masters: their runs, and what they replicate. Another text means that something may be
	// lost. It is empty if that is not known.
	Histories string
}

// Args returns the arguments of the script. The instant is empty, except in tests.
func (b *Beat) Args(instant string) []any {
	args := []any{instant, b.ID, b.Register, b.TTL.Microseconds(), b.Step.Microseconds(), b.Known}
	for _, id := range b.Seen {
		args = append(args, id)
	}
	return args
}

// Read reads the reply of the script.
func (b *Beat) Read(reply []any) error {
	p := parser{words: reply}
	b.State = next[string](&p)
	b.Clock = p.parse(next[string](&p))
	for len(p.words) > 0 {
		b.Dead = append(b.Dead, next[string](&p))
	}
	if !slices.Contains([]string{"live", "dead", "absent"}, b.State) {
		p.err = ErrReply
	}
	return p.err
}

// A parser reads a reply word by word, and keeps its first error.
type parser struct {
	words []any
	err   error
}

// next returns the next word.
func next[T any](from *parser) (word T) {
	ok := len(from.words) > 0
	if ok {
		word, ok = from.words[0].(T)
		from.words = from.words[1:]
	}
	if !ok {
		from.err = ErrReply
	}
	return word
}

// parse reads a number.
func (p *parser) parse(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil && p.err == nil {
		p.err = fmt.Errorf("%w: %w", ErrReply, err)
	}
	return n
}
