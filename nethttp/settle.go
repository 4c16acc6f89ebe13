package nethttp

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/record"
)

// settleTimeout bounds how long a response waits for the correction of a charge.
const settleTimeout = time.Second

// An Outcome describes the response to an admitted request, for [Rule].Settle.
type Outcome struct {
	// Status is the final status of the response. It is 500 if the handler panicked
	// before it wrote one, whatever status is sent in the end.
	Status int

	// Written is the number of bytes that the handler wrote to the body.
	Written int64

	// Hijacked reports whether the handler hijacked the connection. If so, Settle is
	// not called: the units passed to [SetCost] are charged, or else the charge
	// stands.
	Hijacked bool

	// Cost is the number of units passed to [SetCost], or else the number charged.
	Cost int64
}

// StatedCost is a [Rule].Settle for handlers that call [SetCost]. If they do not, the
// charge stands.
func StatedCost(_ *http.Request, o Outcome) int64 { return o.Cost }

// FailuresOnly is a [Rule].Settle that charges only requests whose status is 400 or more, for
// logins: who signs in is charged nothing. It is not only for 401, because clients can cause
// other errors with a password that is right or wrong.
func FailuresOnly(_ *http.Request, o Outcome) int64 {
	if o.Status < http.StatusBadRequest {
		return 0
	}
	return o.Cost
}

// SetCost sets the number of units that the request cost under the rule whose Limiter
// has the given name. The last call counts; [Rule].Settle corrects the charge when the
// handler is done. ctx is the context of the handler's request, or derived from it.
//
// SetCost does nothing and returns false if no rule of that name that has Settle charged
// the request, if units is negative, or if the handler is done. It is safe for concurrent
// use.
func SetCost(ctx context.Context, limiter string, units int64) bool {
	b, _ := ctx.Value(billKey{}).(*bill)
	for ; b != nil; b = b.outer {
		for i := range b.lines {
			l := &b.lines[i]
			if rule := b.rule(l); rule.Settle != nil && rule.name() == limiter {
				return units >= 0 && b.state(l, units)
			}
		}
	}
	return false
}

// Begin prepares to settle the charge of an admitted request. It returns the request to
// pass to the handler, in whose context [SetCost] works, and the function to call when
// the handler returns or panics. Only the first call of that function has an effect, and
// it ignores Outcome.Cost. If there is nothing to settle, Begin returns r and nil.
//
// [Guard.Handler] does all this; Begin is for adapters to frameworks.
func (v *Verdict) Begin(r *http.Request) (begun *http.Request, settle func(Outcome)) {
	if v.bill == nil {
		return r, nil
	}
	return v.bill.open(r, v.Decision)
}

// serve calls next with a recorder and settles the charge.
func (v *Verdict) serve(next http.Handler, w http.ResponseWriter, r *http.Request) {
	begun, settle := v.Begin(r)
	rec := &record.Recorder{ResponseWriter: w}
	returned := false
	defer func() { settle(Outcome{Status: rec.Final(returned), Written: rec.Written, Hijacked: rec.Hijacked}) }()
	next.ServeHTTP(rec.Writer(), begun)
	returned = true
}

// billKey is the key of the innermost bill in a context.
type billKey struct{}

// A bill is the charge of a request while its handler runs.
type bill struct {
	guard    *Guard
	decision core.Decision // from Begin on
	lines    []line        // one for each charge of the decision
	outer    *bill         // of the guard around this one
	trial    *trial        // nil: none

	mu     sync.Mutex // guards lines[].cost and closed
	closed bool
}

type line struct {
	rule    int // its index
	charged int64
	cost    int64 // as SetCost set it, or else charged
}

func (b *bill) rule(l *line) *Rule { return &b.guard.config.Rules[l.rule] }

// add adds a charge, and first makes the bill if b is nil.
func (b *bill) add(g *Guard, rule int, n int64) *bill {
	if b == nil {
		b = &bill{guard: g, lines: make([]line, 0, len(g.config.Rules))}
	}
	b.lines = append(b.lines, line{rule: rule, charged: n, cost: n})
	return b
}

// open returns the request with the bill in its context.
func (b *bill) open(r *http.Request, d core.Decision) (*http.Request, func(Outcome)) {
	b.decision = d
	b.outer, _ = r.Context().Value(billKey{}).(*bill)
	r = r.WithContext(context.WithValue(r.Context(), billKey{}, b))
	return r, func(o Outcome) { b.settle(r, o) }
}

// state sets the cost of a line unless the bill is closed.
func (b *bill) state(l *line, units int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	l.cost = units
	return true
}

// settle closes the bill and corrects the charge; further calls do nothing.
func (b *bill) settle(r *http.Request, o Outcome) {
	b.mu.Lock()
	again := b.closed
	b.closed = true
	b.mu.Unlock()
	if again {
		return
	}
	actual := make([]int64, len(b.lines))
	changed := false
	var err error
	for i := range b.lines {
		l := &b.lines[i]
		actual[i] = l.cost
		if rule := b.rule(l); rule.Settle != nil && !o.Hijacked {
			o.Cost = l.cost
			actual[i] = rule.Settle(r, o)
		}
		if actual[i] < 0 {
			negative := returned("Settle", "%d; it must be 0 or more: the charge stands", actual[i])
			err = errors.Join(err, b.guard.ruleError(l.rule, negative))
			actual[i] = l.charged
		}
		changed = changed || actual[i] != l.charged
	}
	var uncovered int64
	if changed {
		// The charge is corrected even if the client has disconnected.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), settleTimeout)
		defer cancel()
		var failed error
		uncovered, failed = b.decision.Settle(ctx, actual...)
		b.trial.settle(ctx, b.lines, actual)
		err = errors.Join(err, failed)
	}
	if (changed || err != nil) && b.guard.config.OnSettled != nil {
		b.guard.config.OnSettled(r, uncovered, err)
	}
}
