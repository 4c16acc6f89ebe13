package keeper

import (
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// MaxDead is how many tombstones a server keeps at most, the newest.
const MaxDead = 4096

// SlotsScript is the script of an [Op], and BeatScript the script of a [Beat].
var (
	//go:embed slots.lua
	SlotsScript string

	//go:embed beat.lua
	BeatScript string
)

// An Op is a run of the slots script: what the process holds of a key, and how many
// more it wants.
type Op struct {
	Name, Key string // of the slots
	ID        string // the incarnation
	Seq       int64  // the statement with the largest counts
	Held      int64
	Want      int64 // slots, above Held; negative: it gives up so many at most, if the key holds more than Limit
	Limit     int64
	Keep      bool     // keep a zero: an earlier op may still be in flight
	ListAll   bool     // the reply is to have the fields of all others
	Waits     Waits    // whether callers of this process wait for slots of the key
	Instant   string   // of the server; empty, except in tests
	Drop      []string // incarnations whose fields are to be removed

	Reply Reply
	Err   error
}

// A Reply is the answer to an [Op].
type Reply struct {
	Outcome Outcome
	Found   Field   // the own field before; its ID is empty if there was none
	Granted int64   // negative: given up
	Others  int64   // what the others hold
	Marked  bool    // the own field says that this process waits
	Due     int     // which of the slots that become free next is kept for it, from 1; 0: none
	Fields  []Field // the fields of the others: if they are few, or ListAll, or less was granted than wanted
}

// A Field is what an incarnation has stated.
type Field struct {
	ID         string
	Count, Seq int64
	Mark       Mark // the zero Mark if it does not wait
}

// A Mark says that an incarnation waits, with the server's time in microseconds.
type Mark struct {
	Seen  int64 // when that was stated
	Since int64 // from when on its turn counts
	Limit int64
}

// Waits says whether an incarnation waits for slots. Those that do leave each other room.
type Waits int

const (
	// WaitsNot: it does not.
	WaitsNot Waits = iota
	// WaitsShort: it does if it is granted less than it wants.
	WaitsShort
	// WaitsOn: it does, whatever it is granted.
	WaitsOn
	// WaitsStill: it does if it did, but the slots wanted now are not for waiting callers.
	WaitsStill
)

// An Outcome is what the script did with an [Op].
type Outcome int

const (
	// Done: the key is as stated.
	Done Outcome = iota
	// Same: the same op was executed before. Nothing was written.
	Same
	// Stale: a later op was executed before. Nothing was written.
	Stale
)

// Args returns the arguments of the script.
func (o *Op) Args() []any {
	args := []any{o.ID, o.Seq, o.Held, o.Want, o.Limit, bit(o.Keep), bit(o.ListAll), int(o.Waits), o.Instant}
	for _, id := range o.Drop {
		args = append(args, id)
	}
	return args
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}

var errReply = errors.New("headgate: a script's reply is malformed")

// Read reads the reply of the script.
func (o *Op) Read(text string) {
	o.Reply, o.Err = readReply(text)
	if o.Reply.Found.Seq > 0 {
		o.Reply.Found.ID = o.ID
	}
}

func readReply(text string) (r Reply, err error) {
	words := strings.Split(text, " ")
	if len(words) != 6 {
		return r, fmt.Errorf("%w: %d words", errReply, len(words))
	}
	var p parser
	r.Outcome = Outcome(p.among(words[0], "done", "same", "stale"))
	if words[1] != "-" {
		count, seq, _ := strings.Cut(words[1], ":")
		r.Found = Field{Count: p.number(count), Seq: p.number(seq)}
	}
	r.Granted, r.Others = p.number(words[2]), p.number(words[3])
	marked := p.number(words[4])
	r.Marked, r.Due = marked > 0, int(max(marked-1, 0))
	for _, field := range list(words[5]) {
		id, count, _ := strings.Cut(field, ":")
		r.Fields = append(r.Fields, Field{ID: id, Count: p.number(count)})
	}
	return r, p.err
}

// ReadField reads a field of a key's hash.
func ReadField(id, value string) (Field, error) {
	var p parser
	var numbers [5]int64
	words := strings.Split(value, ":")
	if len(words) != 2 && len(words) != len(numbers) {
		return Field{}, fmt.Errorf("%w: %d numbers in a field", errReply, len(words))
	}
	for i, word := range words {
		numbers[i] = p.number(word)
	}
	return Field{id, numbers[0], numbers[1], Mark{numbers[2], numbers[3], numbers[4]}}, p.err
}

func list(words string) []string {
	if words == "" {
		return nil
	}
	return strings.Split(words, ",")
}

// A parser parses numbers and words, and keeps its first error.
type parser struct{ err error }

func (p *parser) number(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil && p.err == nil {
		p.err = fmt.Errorf("%w: %w", errReply, err)
	}
	return n
}

func (p *parser) among(s string, words ...string) int {
	for i, w := range words {
		if s == w {
			return i
		}
	}
	if p.err == nil {
		p.err = fmt.Errorf("%w: %q", errReply, s)
	}
	return 0
}

// A Beat is a run of the beat script.
type Beat struct {
	ID       string // the incarnation to keep alive; empty: none yet
	New      string // is registered if ID is gone
	TTL      time.Duration
	Step     time.Duration // by how much it may advance the fleet's time at most
	Replaces string        // a registration buries incarnations with this prefix; empty: none
	Bury     []string
	Seen     []string // incarnations seen in hashes: unknown ones are registered, and die without beats

	State State
	Clock int64    // the fleet's time, in microseconds
	Dead  []string // tombstones
}

// A State is what became of the incarnation of a [Beat].
type State int

const (
	// None: there was no ID. The new one, if any, is registered.
	None State = iota
	// Live: it is alive.
	Live
	// Lost: it had been declared dead. The new one is registered.
	Lost
	// Absent: the server does not know it. The new one is registered.
	Absent
	// Spent: the new one is dead already, and was not registered.
	Spent
)

// Args returns the arguments of the script. The instant is empty, except in tests.
func (b *Beat) Args(instant string) []any {
	args := []any{instant, b.ID, b.New, b.TTL.Microseconds(), b.Step.Microseconds(), MaxDead, b.Replaces, len(b.Bury)}
	for _, id := range slices.Concat(b.Bury, b.Seen) {
		args = append(args, id)
	}
	return args
}

// Read reads the reply of the script.
func (b *Beat) Read(text string) error {
	words := strings.Split(text, " ")
	if len(words) != 3 {
		return fmt.Errorf("%w: %d words", errReply, len(words))
	}
	var p parser
	b.State, b.Clock, b.Dead = State(p.among(words[0], "none", "live", "lost", "absent", "spent")), p.number(words[1]), list(words[2])
	return p.err
}
