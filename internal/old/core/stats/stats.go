package stats

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/internal/hidden"
	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/core/store"
)

// Others is the name under which everything is counted whose name came when as many names
// were known as are counted one by one.
const Others = "(others)"

const (
	maxNames    = 1024 // limiters; slots
	maxPolicies = 16   // of a limiter, with all its plans
	minSecret   = 32   // bytes
	quickPlaces = 256  // see policy
	quiet       = time.Minute
)

// Config is the configuration of a [Stats]. Its zero value is ready to use.
type Config struct {
	// Logger, if not nil, gets a record at level INFO about the refusals of a limiter or of slots,
	// without refusals on trial. It gets at most one a second for each. It gets a record at WARN
	// when a store becomes unavailable, loses slots, or loses data. It gets one at INFO when the
	// store is available again. It is called in a goroutine of its own, or of the store.
	Logger *slog.Logger

	// Secret, of at least 32 bytes, is the key of the hashes that stand for refused keys. Give all
	// servers the same, so that a client has one hash. Without a Secret, a random one is used. Then
	// nobody can look up a hash, and the hashes of two processes differ. If it is the Secret of
	// package redisstore, the hashes begin as the names of the keys in Redis.
	Secret []byte `json:"-"`

	// WarnAt is a percentage from 1 to 100. Near of a [Limiter] counts the admitted charges after
	// which at least that much of a limit is used. 0 counts none.
	WarnAt int

	// ShowKeys shows refused keys themselves instead of hashes. Do not set it if keys are
	// secrets or say who somebody is, unless all who can read a Snapshot may know them.
	ShowKeys bool
}

// Format implements [fmt.Formatter]: it prints the configuration without the Secret.
func (c Config) Format(s fmt.State, verb rune) {
	type plain Config
	c.Secret = nil
	hidden.Print(s, verb, plain(c))
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
	memories []memory
	reason   string    // of the latest outage
	changed  time.Time // when a server became unavailable, or available again
}

type memory struct {
	name  string
	store *memstore.Store
}

// New returns a Stats in which nothing is counted. The error is about the Secret or WarnAt.
func New(c Config) (*Stats, error) {
	if c.WarnAt < 0 || c.WarnAt > 100 {
		return nil, fmt.Errorf("headgate: WarnAt is %d percent, not 0 to 100", c.WarnAt)
	}
	if n := len(c.Secret); n > 0 && n < minSecret {
		return nil, fmt.Errorf("headgate: a Secret of %d bytes can be guessed: take %d random ones", n, minSecret)
	}
	if len(c.Secret) == 0 {
		c.Secret = make([]byte, minSecret)
		if _, err := rand.Read(c.Secret); err != nil {
			return nil, err
		}
	}
	s := &Stats{config: c, start: time.Now(), seed: maphash.MakeSeed(), mac: newMAC(c.Secret)}
	s.config.Secret = nil // it is inside mac, which does not print it
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
	return s, nil
}

// Observer returns the observer for the configuration of a store whose events shall be counted.
// Several stores may have it. See [store.Observers] for how a store has another one as well.
func (s *Stats) Observer() *store.Observer {
	return &store.Observer{
		Shares:  s.config.WarnAt > 0,
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
func (s *Stats) AddMemory(name string, m *memstore.Store) {
	name = strings.ToValidUTF8(name, "\uFFFD")
	s.mu.Lock()
	defer s.mu.Unlock()
	s.memories = slices.DeleteFunc(s.memories, func(m memory) bool { return m.name == name })
	s.memories = append(s.memories, memory{name, m})
}

// decided returns a function that counts decisions. It is a literal, not a method value, which
// would copy the event once more.
func (s *Stats) decided() func(context.Context, store.DecisionEvent) {
	return func(_ context.Context, e store.DecisionEvent) {
		if e.Allowed {
			s.policy(e.Limiter, e.Policy).admitted.of(e.Source).add(e.Units)
			if s.config.WarnAt > 0 && e.Used >= s.config.WarnAt {
				s.limiters.get(e.Limiter).near.Add(1)
			}
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
	case errors.Is(err, store.ErrClosed):
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
