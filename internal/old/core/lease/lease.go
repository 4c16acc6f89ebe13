package lease

import (
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/internal/old/core/store"
)

// Defaults and bounds of a [Config].
const (
	DefaultFor      = time.Second
	MaxFor          = time.Minute
	MinFor          = time.Millisecond
	DefaultMaxBytes = 64 << 20
	MaxKey          = 256 // bytes of a key that is leased
)

// Config is the configuration of a [Store]. Its zero value is ready to use.
type Config struct {
	// For is the longest time for which units are leased, from [MinFor] to [MaxFor]. 0 means
	// [DefaultFor]. A longer time saves calls of the store. But unused units of one server are
	// missing elsewhere for longer. Leases end with the sub-window anyhow. None begins
	// when only one and a quarter round trips of it are left.
	For time.Duration

	// MaxBytes bounds the memory for leases, beside 1 MB that a Store always takes. Three quarters
	// are for keys: about 600 bytes for each, and the key itself. The rest is for units that wait
	// to be given back, and for calls in the background. 0 means [DefaultMaxBytes], enough for
	// 75,000 keys of 40 bytes. Calls for further keys are passed on, and so are calls for keys of
	// more than [MaxKey] bytes. Units for which there is no room are not given back. They count as
	// used until they expire, and Settled of the [store.Observer] is told.
	MaxBytes int64
}

// A Store is a [store.Store] that leases units from another. Make one with [New]. It is safe
// for concurrent use. While keys have been asked for often lately, a timer runs.
type Store struct {
	next     store.Store
	kept     store.Place // of what is kept with limiters
	span     int64       // Config.For, in nanoseconds
	maxBytes int64
	now      func() instant
	seed     maphash.Seed

	families *families

	calls   timing
	closed  atomic.Bool
	entries atomic.Int64
	used    atomic.Int64 // bytes, of maxBytes
	shards  [shardCount]shard
	returns returns
	tempo   atomic.Int64 // of the timer, in nanoseconds
}

// Format implements [fmt.Formatter]. It prints nothing of the leases, which have keys.
func (*Store) Format(state fmt.State, _ rune) { _, _ = io.WriteString(state, "lease.Store") }

var _ store.Store = (*Store)(nil)

// New returns a store that leases from another. The other store may be used directly too, for
// example for slots. The error names the fault in the configuration.
func New(next store.Store, c Config) (*Store, error) {
	if c.For == 0 {
		c.For = DefaultFor
	}
	if c.MaxBytes == 0 {
		c.MaxBytes = DefaultMaxBytes
	}
	var faults []error
	if next == nil {
		faults = append(faults, errors.New("the store is nil"))
	}
	if _, ok := next.(*Store); ok {
		faults = append(faults, errLeased)
	}
	if c.For < MinFor || c.For > MaxFor {
		faults = append(faults, fmt.Errorf("a For of %v is not from %v to %v", c.For, MinFor, MaxFor))
	}
	if c.MaxBytes < 0 {
		faults = append(faults, fmt.Errorf("MaxBytes is %d, less than 0", c.MaxBytes))
	}
	if len(faults) > 0 {
		return nil, fmt.Errorf("headgate: lease: %w", errors.Join(faults...))
	}
	s := &Store{
		next:     next,
		span:     int64(c.For),
		maxBytes: c.MaxBytes,
		now:      clock(),
		seed:     maphash.MakeSeed(),
		families: newFamilies(),
		returns:  returns{sending: make(chan struct{}, 1)},
	}
	s.tempo.Store(min(s.span, int64(time.Second)) / 8)
	for i := range s.shards {
		s.shards[i].entries = make(map[uint64]*entry)
	}
	return s, nil
}

// hurry makes the timer as fast.
func (s *Store) hurry(tempo int64) {
	for old := s.tempo.Load(); tempo < old && !s.tempo.CompareAndSwap(old, tempo); {
		old = s.tempo.Load()
	}
}

// Observer implements [store.Store]. It is the Observer of the store below.
func (s *Store) Observer() *store.Observer { return s.next.Observer() }

// Kind implements [store.Kinded]. It is the kind of the store below.
func (s *Store) Kind() string { return store.KindOf(s.next) }

// leased is where each Store keeps something, so that another finds it.
var leased store.Place

// Prepare implements [store.Store].
func (s *Store) Prepare(l *store.Limiter) error {
	if err := s.next.Prepare(l); err != nil {
		return err
	}
	if l.Kept(&leased) != nil {
		return errLeased
	}
	own, changed := s.families.join(l, maphash.String(s.seed, l.Spec().Name))
	l.Keep(&s.kept, own)
	l.Keep(&leased, true)
	if changed {
		s.end(func(e *entry) bool { return e.limiter.family == own.family })
	}
	parts := own.family.parts.Load()
	if parts.bucket > 0 {
		s.hurry(max(parts.bucket*1000/8, int64(MinFor)))
	}
	for _, g := range parts.grids { // what is not spent is missing elsewhere until it is given back
		s.hurry(max(g*1000/4, int64(25*time.Millisecond)))
	}
	return nil
}
