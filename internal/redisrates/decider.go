// Package redisrates decides about rates in Redis: one server, a primary behind Sentinel, or a Cluster. What users are
// promised is in docs/redis.md and SECURITY.md, and why it works so in docs/design/redis.md.
//
// A question goes down three floors, and its answer comes back the same way. Each floor is a type with a verb of its
// own, and knows nothing of the floors above it:
//
//	Decider  decides  decider.go    a refusal that is remembered (refusals.go), or what the line is answered; what
//	                                no server has answered, by Config.Failure
//	                  hashslots.go  keys of several hash slots: in turn, and given back if one refuses
//	                  settle.go     corrections of charges, and resets
//	line     sends    line.go       when a question is sent, how long its caller waits, what a failed call means
//	                  queue.go      together with whom: what waits for a server, and who is late
//	                  servers.go    to whom: the server, or the master of the key, unless it is away (breaker.go)
//	                  pauses.go     whether this process was stopped while it waited
//	script   runs     script.go     a batch: a command for each hash slot and script
//	                  wire.go       the arguments of decide.lua and settle.lua, and their replies, cell by cell
//	                  policy.go     what the scripts and the names of values say of a policy
//	                  errors.go     what an error of Redis means
//	                  check.go      what is wrong with a client or a server
package redisrates

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

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
	line     *line
	script   *script
	timeout  time.Duration
	failure  outage.Failure
	shares   int64          // into which FailLocal divides limits
	local    *memory.States // of FailLocal
	refusals *refusals      // nil: none is remembered
}

// New returns a store over a client of one server, of Sentinels, or of a Cluster. It does not connect. The error joins
// all that is wrong.
func New(client redis.UniversalClient, config Config) (*Decider, error) {
	config.Prefix = cmp.Or(config.Prefix, "headgate")
	config.Timeout = cmp.Or(config.Timeout, 100*time.Millisecond)
	config.RefusalTTL = cmp.Or(config.RefusalTTL, time.Second)
	faults := config.faults()
	faults.addClient(client)
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}

	// Floor by floor, from below. Each is given what it needs of the one below it, and of the Config.
	names := rediskey.New(config.Prefix, config.Secret)
	cluster, _ := client.(*redis.ClusterClient)
	script := &script{client: client, cluster: cluster, names: names}
	d := &Decider{
		line: &line{
			run: script.run, try: script.runProbe,
			timeout: config.Timeout, called: config.Called, changed: config.Changed,
			servers: servers{names: names, cluster: cluster},
			pauses:  pauses{interval: config.Timeout / looksInTimeout},
		},
		script: script, timeout: config.Timeout, failure: config.Failure, shares: int64(max(config.Servers, 1)),
	}
	d.line.servers.byAddress.Store(&map[string]*server{})

	if config.Failure == outage.FailLocal {
		d.local = memory.New(0)
	}
	if config.RefusalTTL > 0 {
		d.refusals = &refusals{start: time.Now(), ttl: config.RefusalTTL}
	}
	// So nobody has to ask whether somebody is to be told.
	if config.Called == nil {
		d.line.called = func(store.Call) {}
	}
	if config.Changed == nil {
		d.line.changed = func(error) {}
	}
	d.line.servers.changed = d.line.changed
	return d, nil
}

// faults returns all that is wrong with a Config that has its defaults.
func (c Config) faults() (f faults) {
	// All together, so that a program that does not start says at once what to change.
	n := len(c.Secret)
	unknown := c.Failure < outage.FailLocal || c.Failure > outage.FailClosed
	f.add(c.Timeout < time.Millisecond, "a Timeout of %v is below 1 ms", c.Timeout)
	f.add(unknown, "Failure %d is none of FailLocal, FailOpen, FailClosed", c.Failure)
	f.add(c.Servers < 0, "%d Servers: use 0 or more", c.Servers)
	short := n > 0 && n < rediskey.MinSecret
	f.add(short, "a Secret of %d bytes: use %d random bytes or more", n, rediskey.MinSecret)
	braces := strings.ContainsAny(c.Prefix, "{}")
	f.add(braces, "a Prefix with braces would decide the hash slots of a Cluster: leave them out")
	return f
}

// Client returns the client.
func (d *Decider) Client() redis.UniversalClient { return d.script.client }

// Check returns what to put right before going live, a line each: commands that fail, a server that may evict counts,
// or whose clock is not that of this process. On a Cluster it looks at each master.
func (d *Decider) Check(ctx context.Context) error { return d.script.check(ctx) }

// Away returns why a server is not asked at the moment, or nil. It makes no call.
func (d *Decider) Away() error { return d.line.servers.away() }

// Prepare implements [store.Rates]. It comes before the first question about a policy, and writes the Attachment that
// all later ones read.
func (d *Decider) Prepare(policies []step.Policy) error {
	var shares []step.Policy
	for i := range policies {
		policy := &policies[i]
		if policy.Constant() {
			continue
		}
		attached := newPolicy(policy, d.script.clock)
		policy.Attachment = attached

		// Without a server, the share of each policy is decided in memory. That it cannot be is told now, and not in an
		// outage.
		if d.failure != outage.FailLocal {
			continue
		}
		share, err := d.share(policy)
		if err != nil {
			return fmt.Errorf("for FailLocal: policy %q: %w", policy.Name, err)
		}
		attached.local = share
		shares = append(shares, *share)
	}
	if len(shares) == 0 {
		return nil
	}
	return d.local.Prepare(shares)
}

// share returns the policy of which this server decides by itself: the same, or one of a part of its limit.
func (d *Decider) share(policy *step.Policy) (*step.Policy, error) {
	if d.shares == 1 {
		return policy, nil
	}
	numbers, err := policy.Share(d.shares)
	if err != nil {
		return nil, err
	}
	share, err := step.New(policy.Limiter, policy.Name, numbers)
	return &share, err
}

// Uncached returns the store without its memory of refusals, for who has one of its own.
func (d *Decider) Uncached() store.Rates { return uncached{d} }

type uncached struct{ *Decider }

func (u uncached) Ask(ctx context.Context, mode step.Mode, cells []step.Cell) (allowed bool, err error) {
	return u.decide(ctx, mode, cells, false)
}

// Ask implements [store.Rates]. If the deadline of the context comes before the answer, a charge that was sent may be
// made.
func (d *Decider) Ask(ctx context.Context, mode step.Mode, cells []step.Cell) (allowed bool, err error) {
	return d.decide(ctx, mode, cells, true)
}

// decide answers a question: if it may, a refusal by what is remembered.
//
// What it says has a Source of its own:
//
//	SourceCache  a refusal that is remembered; no call
//	SourceStore  the server
//	SourceLocal  FailLocal: this process, by its share of the limit
//	SourceOpen   FailOpen: nobody
func (d *Decider) decide(
	ctx context.Context, mode step.Mode, cells []step.Cell, remembered bool,
) (allowed bool, err error) {
	switch mode {
	case step.Settle:
		return d.settle(ctx, cells)
	case step.Reset:
		return true, d.reset(ctx, cells)
	}

	// Peeks and charges share what is remembered: both are refused alike.
	if d.refusals == nil {
		allowed, err = d.decideByServer(ctx, mode, cells)
	} else {
		lookup, refused := d.refusals.lookUp(cells)
		if refused && remembered {
			return false, nil
		}
		// Whatever may have charged, or has shown that units are free, ends what is remembered of these keys. That
		// holds for an observer that panics, too: nobody knows how far the question had come.
		unchanged := false
		defer func() {
			if !unchanged {
				d.refusals.add(cells, oneChange)
			}
		}()
		allowed, err = d.decideByServer(ctx, mode, cells)
		if err == nil && !allowed {
			d.refusals.keep(lookup, cells)
			unchanged = !countsDenied(cells)
		}
	}
	if err != nil {
		return d.decideWithoutServer(ctx, mode, cells, err)
	}
	return allowed, nil
}

// countsDenied reports whether refused attempts count.
func countsDenied(cells []step.Cell) bool {
	for i := range cells {
		if cells[i].Policy.CountDenied {
			return true
		}
	}
	return false
}

// decideWithoutServer answers a question that the server did not. A charge that was sent without an answer may have
// been made there, too: then less is admitted.
func (d *Decider) decideWithoutServer(
	ctx context.Context, mode step.Mode, cells []step.Cell, cause error,
) (allowed bool, err error) {
	// A caller that has given up gets its own error. A settlement is made all the same: units are used, or free again,
	// whether somebody waits for the answer or not.
	if err := ended(ctx); err != nil && mode != step.Settle {
		return false, err
	}
	switch {
	case d.failure == outage.FailClosed, errors.Is(cause, errCrowd): // a crowd is no outage: the server answers others
		return false, unavailable(cause)
	case d.failure == outage.FailOpen:
		for i := range cells {
			cell := &cells[i]
			cell.Instant = 0
			decideOpen(cell)
		}
		return true, nil
	}
	return d.decideLocally(ctx, mode, cells)
}

// decideOpen answers that nothing of a cell is used.
func decideOpen(cell *step.Cell) {
	cell.Source = step.SourceOpen
	cell.Shortfall = 0
	cell.Reading = step.Reading{Remaining: cell.Policy.Capacity()}
}

// decideLocally asks the store in this process. It asks for no more than that can ever grant, as core compared the
// units with limits that were not divided, and gives back no more.
func (d *Decider) decideLocally(ctx context.Context, mode step.Mode, cells []step.Cell) (allowed bool, err error) {
	// The policies of that store are others, so it is asked about copies of the cells. Two are on the stack.
	own := append(make([]step.Cell, 0, 2), cells...)
	for i := range own {
		cell := &own[i]
		cell.Policy = cell.Policy.Attachment.(*scriptPolicy).local
		limit := cell.Policy.Max()
		if mode == step.Settle {
			cell.Units = max(cell.Units, -limit)
		} else {
			cell.Units = min(cell.Units, limit)
		}
	}
	allowed, err = d.local.Ask(ctx, mode, own)
	for i := range own {
		cell := &cells[i]
		cell.Instant = own[i].Instant
		cell.Source = step.SourceLocal
		cell.Shortfall = own[i].Shortfall
		cell.Reading = own[i].Reading
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
	deadline, ok := ctx.Deadline()
	if ok && !time.Now().Before(deadline) {
		return context.DeadlineExceeded
	}
	return nil
}
