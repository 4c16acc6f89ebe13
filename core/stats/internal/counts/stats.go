package counts

import (
	"context"
	"crypto/rand"
	"errors"
	"hash/maphash"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/internal/fault"
	"github.com/headgate/headgate/internal/memory"
	"github.com/headgate/headgate/internal/store"
)

// Others is the name under which everything is counted whose name came when as many names
// were known as are counted one by one.
const Others = "(others)"

const (
	maxNames    = 1024 // limiters; slots
	maxPolicies = 16   // of a limiter, with all its plans
	secretBytes = 32
	quickPlaces = 256 // see policy
	quiet       = time.Minute
)

// Config is the configuration of a [Stats]. Its zero value is ready to use.
type Config struct {
	// Logger, if not nil, gets a record at level INFO about the refusals of a limiter or of slots,
	// without refusals on trial. It gets at most one a second for each. It gets a record at WARN
	// when a store becomes unavailable, loses slots, or loses data. It gets one at INFO when the
	// store is available again. It is called in a goroutine of its own, or of the store.
	Logger *slog.Logger

	// ShowKeys shows refused keys themselves instead of hashes. Do not set it if keys are
	// secrets or say who somebody is, unless all who can read a Snapshot may know them.
	ShowKeys bool
}

// Stats counts the events that stores report. Make one with [New]. It is safe for concurrent use.
type Stats struct {
	config   Config
	start    time.Time
	seed     maphash.Seed
	mac      mac
	limiters registry[limiter]
	slots    registry[slots]
	quick    [quickPlaces]atomic.Pointer[found]
	calls    calls
	lost     atomic.Uint64 // slots
	restated atomic.Uint64 // keys of slots
	away     atomic.Int64  // servers that are unavailable
	outages  atomic.Uint64

	mu       sync.Mutex
	memories []inMemory
	reason   string    // of the latest outage
	changed  time.Time // when a server became unavailable, or available again
}

type inMemory struct {
	name  string
	store *memory.Store
}

// New returns a Stats in which nothing is counted. Hashes stand for refused keys, under a random secret: nobody can look
// one up, and those of two processes differ.
func New(c Config) *Stats {
	secret := make([]byte, secretBytes)
	_, _ = rand.Read(secret) // it never fails
	s := &Stats{config: c, start: time.Now(), seed: maphash.MakeSeed(), mac: newMAC(secret)}
	s.limiters.init(maxNames, func(name string) *limiter {
		l := &limiter{spell: spell{name: name, kind: "limiter", stats: s}}
		l.policies.init(maxPolicies, func(name string) *policy { return &policy{name: name} })
		l.count = l.refused
		return l
	})
	s.slots.init(maxNames, func(name string) *slots {
		k := &slots{spell: spell{name: name, kind: "slots", stats: s}}
		k.count = func() []refused { return []refused{{"", k.refused()}} }
		return k
	})
	return s
}

// Observer returns the observer for the configuration of a store whose events shall be counted.
// Several stores may have it. See [store.Observers] for how a store has another one as well.
func (s *Stats) Observer() *store.Observer {
	return &store.Observer{
		Decided: s.decided(),
		Refused: func(_ context.Context, e store.DecisionEvent, key string) {
			s.limiters.get(e.Limiter).top.add(s, key)
		},
		Settled:       s.settled,
		SlotAcquired:  s.acquired,
		SlotRefused:   func(_ context.Context, e store.SlotEvent, key string) { s.slots.get(e.Slots).top.add(s, key) },
		SlotReleased:  func(name string) { s.slots.get(name).released.Add(1) },
		SlotsLost:     s.slotsLost,
		SlotsRestated: s.slotsRestated,
		Called:        s.calls.add,
		Changed:       s.storeChanged,
	}
}

// AddMemory adds the memory of a store to the report, under a name that tells it from others. It
// replaces the one that had the name before. Bytes of a name that are not UTF-8 become U+FFFD,
// because Prometheus takes no metrics with such a label.
func (s *Stats) AddMemory(name string, m *memory.Store) {
	name = strings.ToValidUTF8(name, "\uFFFD")
	s.mu.Lock()
	defer s.mu.Unlock()
	s.memories = slices.DeleteFunc(s.memories, func(m inMemory) bool { return m.name == name })
	s.memories = append(s.memories, inMemory{name, m})
}

// decided returns a function that counts decisions. It is a literal, not a method value, which
// would copy the event once more.
func (s *Stats) decided() func(context.Context, store.DecisionEvent) {
	return func(_ context.Context, e store.DecisionEvent) {
		if e.Allowed {
			s.policy(e.Limiter, e.Policy).admitted.of(e.Source).add(e.Units)
			return
		}
		l := s.limiters.get(e.Limiter)
		switch {
		case e.Err != nil:
			l.errors[reason(e.Err)].add(e.Units)
		case e.Policy == "":
			l.withdrawn.of(e.Source).add(e.Units)
		case e.Trial:
			p := l.policies.get(e.Policy)
			p.trial.of(e.Source).add(e.Units)
			p.lastTrial.Store(time.Now().UnixNano())
		default:
			p := l.policies.get(e.Policy)
			p.refused.of(e.Source).add(e.Units)
			p.last.Store(l.refuse())
		}
	}
}

// A found is a policy of a limiter, and how it was found.
type found struct {
	limiter, name string
	policy        *policy
}

// policy returns what is counted of a policy. Those that admit are mostly found in a table by
// some letters of the names, which takes no hash, and a comparison of names, which is mostly
// one of two pointers. Those that find no place there are found by the registries.
func (s *Stats) policy(limiter, name string) *policy {
	if limiter == "" || name == "" {
		return s.limiters.get(limiter).policies.get(name)
	}
	place := &s.quick[letter(limiter)+31*letter(name)]
	f := place.Load()
	if f != nil && f.limiter == limiter && f.name == name {
		return f.policy
	}
	p := s.limiters.get(limiter).policies.get(name)
	if f == nil {
		place.CompareAndSwap(nil, &found{limiter, name, p})
	}
	return p
}

// letter returns a number that depends on the length, the last and the middle letter.
func letter(name string) uint8 {
	n := len(name)
	return uint8(n) + 7*name[n-1] + 3*name[n/2]
}

func (s *Stats) settled(_ context.Context, e store.SettleEvent) {
	l := s.limiters.get(e.Limiter)
	l.settled.Add(1)
	switch {
	case e.Err != nil:
		l.unsettled.Add(1)
	case e.Actual < e.Units:
		l.givenBack.Add(uint64(e.Units - e.Actual))
	default:
		l.chargedLater.Add(uint64(e.Actual - e.Units))
		l.uncovered.Add(uint64(e.Uncovered))
	}
}

func (s *Stats) acquired(_ context.Context, e store.SlotEvent) {
	k := s.slots.get(e.Slots)
	switch {
	case e.Err != nil:
		k.errors[reason(e.Err)].Add(1)
	case e.Granted:
		k.results[granted][source(e.Source)].Add(1)
	case e.Trial:
		k.results[onTrial][source(e.Source)].Add(1)
	default:
		k.results[full][source(e.Source)].Add(1)
		k.refuse()
	}
}

func (s *Stats) slotsLost(held int64) {
	s.lost.Add(uint64(held))
	s.log(slog.LevelWarn, "headgate: the store declared this process dead while it held slots", slog.Int64("held", held))
}

func (s *Stats) slotsRestated(keys int) {
	s.restated.Add(uint64(keys))
	s.log(slog.LevelWarn, "headgate: the store may have lost slots, which are stated again", slog.Int("keys", keys))
}

func (s *Stats) storeChanged(reason error) {
	s.mu.Lock()
	s.changed = time.Now()
	if reason != nil {
		s.reason = reason.Error()
	}
	s.mu.Unlock()
	if reason == nil {
		s.away.Add(-1)
		s.log(slog.LevelInfo, "headgate: the store is available again")
		return
	}
	s.away.Add(1)
	s.outages.Add(1)
	s.log(slog.LevelWarn, "headgate: the store is unavailable", slog.String("reason", reason.Error()))
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
	failed
	reasons
)

func reason(err error) int {
	switch {
	case errors.Is(err, store.ErrUnavailable):
		return unavailable
	case errors.Is(err, context.Canceled):
		return canceled
	case errors.Is(err, context.DeadlineExceeded), timedOut(err):
		return timeout
	case errors.Is(err, fault.ErrClosed):
		return closed
	default:
		return failed
	}
}

// timedOut reports whether a connection's deadline passed.
func timedOut(err error) bool {
	var e interface{ Timeout() bool } // of net.Error
	return errors.As(err, &e) && e.Timeout()
}

// reasonText returns the reason as it is written in metrics.
func reasonText(i int) string {
	return [reasons]string{"unavailable", "canceled", "timeout", "closed", "other"}[i]
}
