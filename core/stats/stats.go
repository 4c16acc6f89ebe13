// Package stats counts what limiters and slots do, and who is refused, in bounded memory: a page for operators, and
// metrics for Prometheus.
//
//	seen := stats.New(stats.Config{})
//	store := &core.MemoryStore{Observers: []*core.Observer{seen.Observer()}}
//	http.Handle("/debug/headgate/", seen.Handler()) // where only operators get
//
// Series are made of names, never of keys: of 1,024 limiters, 1,024 slots, and 16 policies of each limiter. Further
// names are counted together, as "(others)". To count an admitted charge takes neither a lock nor an allocation.
package stats

import (
	"context"
	"errors"
	"hash/maphash"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/store"
)

// An event goes this way:
//
//	stats.go     what the observer is told: it finds the counts of the name, and adds one
//	counters.go  the counts of a name, and the registries that find them by their names
//	spell.go     since when a name has been refusing, and the record about it
//	top.go       the keys that a name refuses most
//
// A reader gets the counts this way:
//
//	snapshot.go  all counts at one time, as the JSON shows them
//	metrics.go   the same as families of metrics, and as text for Prometheus
//	tally.go     the same by policy, and what was decided each second
//	page.go      the same as the page; handler.go serves it, the JSON and the text

const (
	maxNames    = 1024 // limiters; slots
	maxPolicies = 16   // of a limiter, with all its plans
	quickPlaces = 256  // see policy
)

// Config configures [Stats]. Its zero value is ready to use.
type Config struct {
	// ShowKeys shows the keys that are refused most on the page, instead of hashes of them. Then the page is as
	// secret as the keys.
	ShowKeys bool

	// Logger, if not nil, gets a record at INFO about the refusals of a limiter or of slots, at most one a second for
	// each; one at WARN when a store's server is away or has lost slots; and one at INFO when it is back.
	Logger *slog.Logger
}

// Stats counts what its observer is told. It is safe for concurrent use.
type Stats struct {
	config   Config
	start    time.Time
	observer core.Observer
	limiters registry[group]
	slots    registry[group]
	quick    [quickPlaces]atomic.Pointer[found]
	seed     maphash.Seed
	hash     func(key string) string // what is shown of a key

	answered, failed histogram     // calls to servers
	questions        atomic.Uint64 // that these were about
	lost             atomic.Uint64 // slots
	restated         atomic.Uint64 // keys of slots
	outages          atomic.Uint64

	mu       sync.Mutex
	memories []func() store.MemoryUse
	away     int64     // servers that are unavailable
	reason   string    // of the latest outage
	changed  time.Time // since when some server has been unavailable, or none any more
}

// New returns a Stats that has counted nothing.
func New(config Config) *Stats {
	// Names may be made of requests, as those of plans; so what is counted by names is bounded.
	seen := &Stats{config: config, start: time.Now(), seed: maphash.MakeSeed(), hash: newHash()}
	seen.limiters.init(maxNames, func(name string) *group { return newGroup(seen, "limiter", name) })
	seen.slots.init(maxNames, func(name string) *group { return newGroup(seen, "slots", name) })
	seen.observer.Backend(&store.Observer{
		Decided: func(_ context.Context, event store.DecisionEvent) {
			if event.Allowed {
				// Most decisions admit, so this is done with as little as possible.
				seen.policy(event.Limiter, event.Policy).admitted[event.Source].add(event.Units)
			} else {
				seen.notAdmitted(&event)
			}
		},
		Settled:       seen.settled,
		Acquired:      seen.acquired,
		Released:      func(name string) { seen.slots.get(name).released.Add(1) },
		Changed:       seen.storeChanged,
		Called:        seen.called,
		SlotsLost:     seen.slotsLost,
		SlotsRestated: seen.slotsRestated,
		Memory:        seen.addMemory,
	})
	return seen
}

// Observer returns the observer for the stores whose events shall be counted. Several stores may have it, also at once:
// their counts are added up.
func (s *Stats) Observer() *core.Observer { return &s.observer }

// A found is a policy of a limiter, and how it was found.
type found struct {
	limiter, name string
	policy        *policy
}

// policy returns what is counted of a policy. Those that admit are mostly found in a table by some letters of the
// names, which takes no hash, and a comparison of names, which is mostly one of two pointers. Those that find no place
// there are found by the registries.
func (s *Stats) policy(limiter, name string) *policy {
	if limiter == "" || name == "" {
		return s.limiters.get(limiter).policies.get(name)
	}
	// The sum is one of bytes, which wraps at 256, so no name leads out of the table.
	place := &s.quick[letter(limiter)+31*letter(name)]
	known := place.Load()
	if known != nil && known.limiter == limiter && known.name == name {
		return known.policy
	}
	// Who finds the place taken does not take it away: two policies of one place would do that to each other for ever.
	policy := s.limiters.get(limiter).policies.get(name)
	if known == nil {
		place.CompareAndSwap(nil, &found{limiter, name, policy})
	}
	return policy
}

// letter returns a number that depends on the length, the last and the middle letter.
func letter(name string) uint8 {
	n := len(name)
	return uint8(n) + 7*name[n-1] + 3*name[n/2]
}

// notAdmitted counts a charge that was not admitted, or of which that is not known. An event has no policy if only
// other limiters of the call refused: see core.DecisionEvent.
func (s *Stats) notAdmitted(event *store.DecisionEvent) {
	group := s.limiters.get(event.Limiter)
	switch {
	case event.Err != nil:
		group.errors[reason(event.Err)].add(event.Units)
	case event.Policy == "":
		group.withdrawn[event.Source].add(event.Units)
	default:
		policy := group.policies.get(event.Policy)
		group.refuse(policy, event.Source, event.Units, event.ObserveOnly, event.Key.Reveal())
	}
}

// settled counts a charge that was corrected, or units that were reported. The units that were to be given back are
// counted also if there is nothing to give back any more: the observer is not told of that.
func (s *Stats) settled(_ context.Context, event store.SettleEvent) {
	group := s.limiters.get(event.Limiter)
	group.settled.Add(1)
	switch {
	case event.Err != nil:
		group.unsettled.Add(1)
	case event.Actual < event.Charged:
		group.givenBack.Add(uint64(event.Charged - event.Actual))
	default:
		group.chargedLater.Add(uint64(event.Actual - event.Charged))
		group.uncovered.Add(uint64(event.Uncovered))
	}
}

// acquired counts a claim of a slot: a charge of one unit, by a policy without a name.
func (s *Stats) acquired(_ context.Context, event store.SlotEvent) {
	group := s.slots.get(event.Slots)
	policy := group.policies.get("")
	switch {
	case event.Err != nil:
		group.errors[reason(event.Err)].add(1)
	case event.Granted:
		policy.admitted[event.Source].add(1)
	default:
		group.refuse(policy, event.Source, 1, event.ObserveOnly, event.Key.Reveal())
	}
}

// called counts a call to a server.
func (s *Stats) called(call store.Call) {
	s.questions.Add(uint64(call.Questions))
	if call.Err != nil {
		s.failed.add(call.Took)
	} else {
		s.answered.add(call.Took)
	}
}

// slotsLost counts slots that others may have, too: this process was silent for longer than the time to live.
func (s *Stats) slotsLost(held int64) {
	s.lost.Add(uint64(held))
	s.log(slog.LevelWarn, "headgate: the store declared this process dead while it held slots",
		slog.Int64("held", held))
}

// slotsRestated counts keys of which a server may have lost the slots, as after a failover.
func (s *Stats) slotsRestated(keys int) {
	s.restated.Add(uint64(keys))
	s.log(slog.LevelWarn, "headgate: the store may have lost slots, which are stated again", slog.Int("keys", keys))
}

// storeChanged notes the begin of an outage of a server, or its end. The limits of a server, its slots and its beats
// each tell, so one outage may be counted several times.
func (s *Stats) storeChanged(reason error) {
	s.mu.Lock()
	if reason == nil {
		s.away--
	} else {
		s.away++
		s.reason = reason.Error()
	}
	// With several servers away it is the first that counts, and the last that is back.
	if s.away == 0 || s.away == 1 && reason != nil {
		s.changed = time.Now()
	}
	s.mu.Unlock()
	if reason == nil {
		s.log(slog.LevelInfo, "headgate: the store is available again")
		return
	}
	s.outages.Add(1)
	s.log(slog.LevelWarn, "headgate: the store is unavailable", slog.String("reason", reason.Error()))
}

// addMemory adds a store in memory, whose size is a metric.
func (s *Stats) addMemory(use func() store.MemoryUse) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.memories = append(s.memories, use)
}

// log writes a record. It must not panic: it may be called where that would end the process.
func (s *Stats) log(level slog.Level, message string, attrs ...slog.Attr) {
	if s.config.Logger == nil {
		return
	}
	defer func() { _ = recover() }()
	s.config.Logger.LogAttrs(context.Background(), level, message, attrs...)
}

// The reasons why there is no decision.
const (
	unavailable = iota
	canceled
	timeout
	closed
	other
	reasons
)

// reasonTexts are the reasons as they are written in metrics.
var reasonTexts = [reasons]string{"unavailable", "canceled", "timeout", "closed", "other"}

// reason returns why there is no decision, in a few words: errors have addresses and times, which would make a series
// each.
func reason(err error) int {
	var connection interface{ Timeout() bool } // a net.Error
	switch {
	// This comes first: it wraps the error of the call, which may be a timeout.
	case errors.Is(err, core.ErrUnavailable):
		return unavailable
	case errors.Is(err, context.Canceled):
		return canceled
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &connection) && connection.Timeout():
		return timeout
	case errors.Is(err, core.ErrClosed):
		return closed
	default:
		return other
	}
}
