// Package redisrates decides about rates in Redis: one server, a primary behind Sentinel, or a Cluster. What users are
// promised is in docs/redis.md and SECURITY.md, and how it works in docs/design/redis.md.
package redisrates

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/ctxmark"
	"github.com/headgate/headgate/internal/memory"
	"github.com/headgate/headgate/internal/outage"
	"github.com/headgate/headgate/internal/rediskey"
	"github.com/headgate/headgate/internal/step"
	"github.com/headgate/headgate/internal/store"
)

// Config configures a [Decider]. Its zero value is ready to use.
type Config struct {
	Prefix     string        // of names, without braces; "" means "headgate"
	Secret     []byte        `json:"-"` // hides keys: 32 bytes or more
	Timeout    time.Duration // of a decision: 1 ms or more; 0 means 100 ms
	RefusalTTL time.Duration // 0 means 1 s; below 0, no refusal is remembered
	Failure    outage.Failure
	Servers    int // by which FailLocal divides limits; 0 means 1

	// Each may be nil. Changed is told that the server is away, with the reason, or back.
	Called  func(store.Call)
	Changed func(reason error)
}

// A Decider is a [store.Rates] in Redis. It is safe for concurrent use, and has nothing to close.
type Decider struct {
	client   redis.UniversalClient
	names    *rediskey.Names
	servers  servers
	timeout  time.Duration
	failure  outage.Failure
	shares   int64
	local    *memory.States // of FailLocal
	refusals *refusals      // nil: none is remembered
	called   func(store.Call)
	changed  func(reason error)

	ahead     atomic.Int64 // of the server's clock before that of this process, in microseconds, as far as it has mattered
	portable  atomic.Bool  // the server has no library struct
	questions sync.Pool    // in a bubble of package synctest, channels must not come from outside
	pauses    pauses

	instant func([]byte) []byte // for tests: the time to use instead of the server's
}

// New returns a store over a client of one server, of Sentinels, or of a Cluster. It does not connect. The error joins
// all that is wrong.
func New(client redis.UniversalClient, c Config) (*Decider, error) {
	c.Prefix = cmp.Or(c.Prefix, "headgate")
	c.Timeout = cmp.Or(c.Timeout, 100*time.Millisecond)
	c.RefusalTTL = cmp.Or(c.RefusalTTL, time.Second)
	faults := c.faults()
	faults.addClient(client)
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	s := &Decider{
		client: client, names: rediskey.New(c.Prefix, c.Secret), timeout: c.Timeout,
		failure: c.Failure, shares: int64(max(c.Servers, 1)), called: c.Called, changed: c.Changed,
		pauses: pauses{step: c.Timeout / looks},
	}
	s.servers.cluster, _ = client.(*redis.ClusterClient)
	s.servers.byAddress.Store(&map[string]*server{})
	if c.Failure == outage.FailLocal {
		s.local = memory.New(0)
	}
	if c.RefusalTTL > 0 {
		s.refusals = &refusals{start: time.Now(), ttl: c.RefusalTTL}
	}
	if s.called == nil {
		s.called = func(store.Call) {}
	}
	if s.changed == nil {
		s.changed = func(error) {}
	}
	return s, nil
}

// faults returns all that is wrong with a Config that has its defaults.
func (c Config) faults() (f faults) {
	n := len(c.Secret)
	f.add(c.Timeout < time.Millisecond, "a Timeout of %v is below 1 ms", c.Timeout)
	f.add(c.Failure < outage.FailLocal || c.Failure > outage.FailClosed, "Failure %d is none of FailLocal, FailOpen, FailClosed", c.Failure)
	f.add(c.Servers < 0, "%d Servers: use 0 or more", c.Servers)
	f.add(n > 0 && n < rediskey.MinSecret, "a Secret of %d bytes: use %d random bytes or more", n, rediskey.MinSecret)
	f.add(strings.ContainsAny(c.Prefix, "{}"), "a Prefix with braces would decide the hash slots of a Cluster: leave them out")
	return f
}

// Client returns the client.
func (s *Decider) Client() redis.UniversalClient { return s.client }

// Away returns why a server is not asked at the moment, or nil. It makes no call.
func (s *Decider) Away() error {
	for _, server := range s.servers.all() {
		if err := cmp.Or(server.breaker.away(), server.elsewhere.away()); err != nil {
			return err
		}
	}
	return nil
}

// Prepare implements [store.Rates].
func (s *Decider) Prepare(policies []step.Policy) error {
	var shares []step.Policy
	for i := range policies {
		p := &policies[i]
		if p.Constant() {
			continue
		}
		kept := newPolicy(p)
		kept.store = s
		p.Attachment = kept
		if s.failure != outage.FailLocal {
			continue
		}
		kept.local = p
		if s.shares > 1 {
			numbers, err := p.Share(s.shares)
			if err != nil {
				return fmt.Errorf("for FailLocal: policy %q: %w", p.Name, err)
			}
			share, err := step.New(p.Limiter, p.Name, numbers)
			if err != nil {
				return fmt.Errorf("for FailLocal: policy %q: %w", p.Name, err)
			}
			kept.local = &share
		}
		shares = append(shares, *kept.local)
	}
	if len(shares) == 0 {
		return nil
	}
	return s.local.Prepare(shares)
}

// Fresh returns the store without its memory of refusals, for who has one of its own.
func (s *Decider) Fresh() store.Rates { return fresh{s} }

type fresh struct{ *Decider }

func (f fresh) Ask(ctx context.Context, mode step.Mode, cells []step.Cell) (allowed bool, err error) {
	return f.answer(ctx, mode, cells, false)
}

// Ask implements [store.Rates]. If the deadline of the context comes before the answer, a charge that was sent may be made.
func (s *Decider) Ask(ctx context.Context, mode step.Mode, cells []step.Cell) (allowed bool, err error) {
	return s.answer(ctx, mode, cells, true)
}

// answer answers a question: if it may, a refusal by what is remembered.
func (s *Decider) answer(ctx context.Context, mode step.Mode, cells []step.Cell, remembered bool) (allowed bool, err error) {
	switch mode {
	case step.Settle:
		return s.settle(ctx, cells)
	case step.Reset:
		return true, s.reset(ctx, cells)
	}
	if s.refusals == nil {
		allowed, err = s.decide(ctx, mode, cells)
	} else {
		l, refused := s.refusals.answer(cells)
		if refused && remembered {
			return false, nil
		}
		returned := false
		defer func() { // also if an observer panics
			if !returned || err != nil || allowed || counted(cells) {
				s.refusals.add(cells, oneRaise)
			}
		}()
		if allowed, err = s.decide(ctx, mode, cells); err == nil && !allowed {
			s.refusals.keep(l, cells)
		}
		returned = true
	}
	if err != nil {
		return s.decideAway(ctx, mode, cells, err)
	}
	return allowed, nil
}

// counted reports whether refused attempts count.
func counted(cells []step.Cell) bool {
	for i := range cells {
		if cells[i].Policy.CountDenied {
			return true
		}
	}
	return false
}

// ask asks about cells of one hash slot. If the server's clock shows another window of a calendar than the two of which it
// was told, it has left cells alone, and is asked once more about them, in the same time.
func (s *Decider) ask(ctx context.Context, mode step.Mode, cells []step.Cell) (allowed bool, err error) {
	allowed, deadline, err := s.askOnce(ctx, mode, cells)
	if !errors.Is(err, errOtherWindow) {
		return allowed, err
	}
	var leftAlone group
	for i := range cells {
		if cells[i].Shortfall == undecided {
			leftAlone.add(cells, i)
		}
	}
	allowed, _, err = s.askOnce(ctxmark.DecideBy(ctx, deadline), mode, leftAlone.cells)
	if errors.Is(err, errOtherWindow) {
		err = errForeign
	}
	leftAlone.copyTo(cells)
	for i := range cells {
		allowed = allowed && cells[i].Shortfall == 0
	}
	return allowed, err
}

// askOnce makes one question of the cells, which is to be answered by the deadline.
func (s *Decider) askOnce(ctx context.Context, mode step.Mode, cells []step.Cell) (allowed bool, deadline time.Time, err error) {
	q := s.newQuestion(mode, cells)
	to, hash := s.servers.of(s.names, &cells[0])
	q.hash = hash
	err = s.submit(ctx, to, q)
	if err != nil && !errors.Is(err, errOtherWindow) {
		return false, deadline, err // it may be in flight
	}
	copy(cells, q.cells)
	allowed = q.allowed
	deadline = q.deadline
	s.free(q)
	return allowed, deadline, err
}

// settle corrects charges where they were made. Each is sent once, even if the context has ended: one that is not
// answered may have been made.
func (s *Decider) settle(ctx context.Context, cells []step.Cell) (allowed bool, err error) {
	defer s.refusals.begin(cells)()
	allowed = true
	var faults []error
	var there group
	for i := range cells {
		c := &cells[i]
		switch c.Source {
		case step.SourceLocal:
			fits, err := s.askLocal(ctx, step.Settle, cells[i:i+1])
			allowed = allowed && fits
			faults = append(faults, err)
		case step.SourceOpen:
			c.Shortfall, c.Reading = 0, step.Reading{Remaining: c.Policy.Capacity()}
		default:
			there.add(cells, i)
		}
	}
	if len(there.cells) > 0 {
		sent, report := context.Background(), there.cells[0].Instant == 0
		if by, ok := ctxmark.DecisionEnd(ctx); ok && report { // which a store of this process can take, too
			sent = ctxmark.DecideBy(sent, by)
		}
		fits, err := s.decide(sent, step.Settle, there.cells)
		if err != nil && report {
			fits, err = s.decideAway(ctx, step.Settle, there.cells, err)
		} else if err != nil {
			err = unavailable(err)
		}
		allowed = allowed && fits
		faults = append(faults, err)
		there.copyTo(cells)
	}
	return allowed, errors.Join(faults...)
}

// reset forgets states. After an error the server may still have them.
func (s *Decider) reset(ctx context.Context, cells []step.Cell) error {
	defer s.refusals.begin(cells)()
	if s.failure == outage.FailLocal {
		if _, err := s.askLocal(ctx, step.Reset, cells); err != nil {
			return err
		}
	}
	call, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	err := s.deleteAll(call, cells)
	if is, _ := aboutSlot(err); is && !s.servers.hasSlots() { // as in decide
		s.servers.slotted.Store(true)
		err = s.deleteAll(call, cells)
	}
	if own := ctx.Err(); own != nil {
		return own
	}
	if err != nil {
		return unavailable(err)
	}
	return nil
}

// deleteAll deletes the values of cells, of one hash slot after the other.
func (s *Decider) deleteAll(ctx context.Context, cells []step.Cell) error {
	for _, group := range s.groups(cells) {
		to, _ := s.servers.of(s.names, &group.cells[0])
		if to.breaker.open.Load() {
			return errAway
		}
		if err := s.delete(ctx, group.cells); err != nil {
			return err
		}
	}
	return nil
}

// decideAway answers a question that the server did not.
func (s *Decider) decideAway(ctx context.Context, mode step.Mode, cells []step.Cell, cause error) (allowed bool, err error) {
	if err := ended(ctx); err != nil && mode != step.Settle {
		return false, err
	}
	switch {
	case s.failure == outage.FailClosed, errors.Is(cause, errBusy): // a crowd is no outage: the server answers others
		return false, unavailable(cause)
	case s.failure == outage.FailOpen:
		for i := range cells {
			c := &cells[i]
			c.Instant, c.Source, c.Shortfall, c.Reading = 0, step.SourceOpen, 0, step.Reading{Remaining: c.Policy.Capacity()}
		}
		return true, nil
	}
	return s.askLocal(ctx, mode, cells)
}

// askLocal asks the store in this process. It asks for no more than that can ever grant, as core compared the units with
// limits that were not divided, and gives back no more.
func (s *Decider) askLocal(ctx context.Context, mode step.Mode, cells []step.Cell) (allowed bool, err error) {
	own := append(make([]step.Cell, 0, 2), cells...)
	for i := range own {
		c := &own[i]
		c.Policy = c.Policy.Attachment.(*policy).local
		if most := c.Policy.Max(); mode != step.Settle {
			c.Units = min(c.Units, most)
		} else {
			c.Units = max(c.Units, -most)
		}
	}
	allowed, err = s.local.Ask(ctx, mode, own)
	for i := range own {
		c, o := &cells[i], &own[i]
		c.Instant, c.Source, c.Shortfall, c.Reading = o.Instant, step.SourceLocal, o.Shortfall, o.Reading
	}
	return allowed, err
}

// unavailable returns the error that says why the server was not used.
func unavailable(cause error) error { return fmt.Errorf("%w: %w", store.ErrUnavailable, cause) }

// ended returns the error of a context that has ended, or whose deadline has come: its own timer may be late.
func ended(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if d, ok := ctx.Deadline(); ok && !time.Now().Before(d) {
		return context.DeadlineExceeded
	}
	return nil
}
