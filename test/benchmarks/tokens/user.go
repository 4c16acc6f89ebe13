package main

import (
	"context"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/step"
)

// A user sends requests, each to the next server.
type user struct {
	tally
	way
	key       string
	limiters  []*core.Limiter // of the servers
	admitted  account         // what was admitted
	possible  account         // that, and what else would have fitted
	largest   int64
	answering []*flight // a ring of the latest requests

	generated, answers int64 // of the answers that have ended
}

// A flight is a request that, if it was admitted, is being answered.
type flight struct {
	request
	limiter *core.Limiter
	charged core.Decision
}

// replay sends the requests at their times since start.
func (u *user) replay(ctx context.Context, requests []request, start time.Time, speed float64) error {
	for i, r := range requests {
		<-time.After(time.Until(start.Add(time.Duration(float64(r.at) / speed))))
		f := &u.answering[i%len(u.answering)]
		if err := u.end(ctx, *f); err != nil {
			return err
		}
		var err error
		if *f, err = u.send(ctx, r, u.limiters[i%len(u.limiters)]); err != nil {
			return err
		}
	}
	for _, f := range u.answering { // in another order, when nobody is refused any more
		if err := u.end(ctx, f); err != nil {
			return err
		}
	}
	return nil
}

// send asks whether the request is admitted, and notes whether that was right.
func (u *user) send(ctx context.Context, r request, l *core.Limiter) (f *flight, err error) {
	at := time.Now().UnixMicro()
	f = &flight{request: r, limiter: l}
	if u.guess == nil {
		f.charged, err = l.Peek(ctx, u.key)
	} else {
		f.charged, err = l.AllowN(ctx, u.key, max(1, r.context+u.guess(u)))
	}
	if err != nil {
		return nil, err
	}
	u.requests++
	if !f.charged.Allowed {
		u.refused++
		if u.possible.fits(at, r.tokens()) {
			u.possible.use(at, r.tokens())
			u.fitted++
		}
		return f, nil
	}
	u.used += r.tokens()
	u.possible.use(at, r.tokens())
	over, row := u.admitted.use(at, r.tokens())
	u.over, u.worst = u.over+over, max(u.worst, row)
	return f, nil
}

// end tells the limiter what the answer has cost.
func (u *user) end(ctx context.Context, f *flight) (err error) {
	if f == nil || !f.charged.Allowed {
		return nil
	}
	u.generated, u.answers = u.generated+f.generated, u.answers+1
	switch {
	case u.guess != nil:
		err = f.charged.Settle(ctx, f.tokens())
	case f.tokens() > 0:
		_, err = f.limiter.Report(ctx, u.key, f.tokens())
	}
	return err
}

// An account is what an oracle, which knows the cost of a request when it is sent, counts under a
// policy, at that instant.
type account struct {
	cell  step.Cell
	state []int64 // nil at first
	now   int64   // microseconds
	row   int64   // units without room, since there was some
}

func newAccount(p core.Policy) (a account, err error) {
	numbers, err := step.Parse(p.String())
	if err != nil {
		return a, err
	}
	policy, err := step.New("account", "account", numbers)
	a.cell.Policy = &policy
	return a, err
}

// fits reports whether so many units have room.
func (a *account) fits(at, units int64) bool {
	a.ask(at, units)
	return units <= a.cell.Policy.Max() && a.cell.Admits(a.state, a.now)
}

func (a *account) ask(at, units int64) {
	if a.state == nil {
		a.state = a.cell.Policy.New()
	}
	a.now, a.cell.Units, a.cell.Instant = max(a.now, at), units, 0
}

// use counts units. It returns for how many there was no room, and how many there are of these in a
// row, since there was room for some.
func (a *account) use(at, units int64) (over, row int64) {
	if units == 0 {
		return 0, a.row
	}
	a.ask(at, units)
	a.state = a.cell.Room(a.state, a.now, true)
	a.cell.Settle(a.state, a.now)
	over = a.cell.Shortfall
	if over < units {
		a.row = 0
	}
	a.row += over
	return over, a.row
}
