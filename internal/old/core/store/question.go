package store

import (
	"fmt"

	"github.com/headgate/headgate/internal/hidden"
)

// A Mode is the kind of a question.
type Mode uint8

// The modes.
const (
	// Allow makes one decision about all charges. If every policy of every limiter admits its
	// charge, every one is charged. Otherwise none is, except that a policy with CountDenied counts
	// the refusal. A charge that is Anyway refuses nothing and is counted in any case. The answer
	// is the Result.
	Allow Mode = iota

	// Peek has the same Result as Allow would, and changes and creates nothing.
	Peek

	// Refuse counts an attempt that is refused elsewhere, under policies that count refusals. It
	// also counts charges that are Anyway. The Result refuses, and has the readings of the
	// policies.
	Refuse

	// Settle corrects charges that were allowed from N to Actual units, with [step.Cell.Settle]
	// for each policy, and sets their Uncovered. It is done even if the context has ended.
	Settle

	// Reset deletes the state of each limiter for its key.
	Reset
)

// String returns a short name for logs and metrics.
func (m Mode) String() string {
	names := [...]string{"allow", "peek", "refuse", "settle", "reset"}
	if int(m) < len(names) {
		return names[m]
	}
	return fmt.Sprintf("mode(%d)", uint8(m))
}

// A Question is a question to a store. The caller provides it, with room for the answer. So no
// layer copies it: a layer passes it on, or asks another question. Nobody uses it at the same time.
type Question struct {
	Mode Mode

	// Charges are at least one, and no two are of the same limiter's name and key. Of all together
	// there are at most MaxReadings policies. Asking changes of each only its Uncovered and its At.
	Charges []Charge

	// Extra is the number of units to charge beyond the N of the only charge as far as they fit, at
	// least 0. If the charge is allowed, k is the largest number from 0 to Extra such that each
	// policy admits N + k. All are charged N + k, as one charge, and the Extra of the Result is k.
	// A Peek tells the k of that moment. Extra does not change a refusal: its cause, its counts and
	// its readings are as without Extra. A store that decides without the state may grant none. For
	// other modes, and for several charges, the error is [ErrExtra], and nothing is changed.
	Extra int64

	// Fresh asks an Allow to be decided by the present state. A remembered refusal is not an
	// answer, however young. It is for layers that remember refusals, and ask rarely.
	Fresh bool

	// Result is the answer to Allow, Peek and Refuse. Whatever it held before is overwritten, and
	// after an error it may hold anything.
	Result Result
}

// A Charge is units of a limiter for a key.
type Charge struct {
	Limiter *Limiter // as the store that is asked has prepared it
	Key     string   `json:"-"`
	N       int64    // units, up to Spec.Most unless Anyway; 0 only checks; of Settle all that was charged, with the Extra of the Result
	Anyway  bool     // the units have been used: see step.Cell

	// At and Source are for Settle. They come from the Result that allowed the charge. An answer may come from
	// several servers, each with a clock of its own. Then it sets each At: the instant of the server that decided.
	At     int64
	Source Source

	// Actual is of Settle: how many units there should have been. 0 gives everything back.
	Actual int64

	// Uncovered is set by Settle, and for a charge that is Anyway. It is the largest number of
	// units for which any one policy had no room. For Settle, it counts only units above N.
	Uncovered int64
}

// Format implements [fmt.Formatter]: it prints the charge without its key.
func (c Charge) Format(s fmt.State, verb rune) {
	type plain Charge
	c.Key = hidden.Mark
	hidden.Print(s, verb, plain(c))
}

// Counts reports whether any charge is Anyway: then a refusal is not all that the question does.
func (q *Question) Counts() bool {
	for i := range q.Charges {
		if q.Charges[i].Anyway {
			return true
		}
	}
	return false
}

// Valid returns [ErrExtra] if the question has an Extra that cannot be granted.
func (q *Question) Valid() error {
	if q.Extra != 0 && (len(q.Charges) != 1 || q.Mode != Allow && q.Mode != Peek || q.Charges[0].Anyway || q.Charges[0].N == 0) {
		return ErrExtra
	}
	return nil
}
