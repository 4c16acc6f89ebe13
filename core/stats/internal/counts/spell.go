package counts

import (
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// A spell is a time in which refusals follow each other within a minute.
type spell struct {
	name, kind string
	stats      *Stats
	count      func() []refused // so far
	since      atomic.Int64     // nanoseconds since 1970; 0 before the first refusal
	last       atomic.Int64
	top        top

	logging atomic.Bool // a record is to be written within a second
	mu      sync.Mutex
	logged  map[string]uint64 // refusals of each policy
}

// refused is how many charges a policy has refused.
type refused struct {
	policy string
	count  uint64
}

// refuse notes a refusal, which has been counted, and returns its time.
func (s *spell) refuse() int64 {
	now := time.Now().UnixNano()
	if last := s.last.Swap(now); now-last > int64(quiet) {
		s.since.Store(now)
	}
	if s.stats.config.Logger != nil && !s.logging.Load() && s.logging.CompareAndSwap(false, true) {
		time.AfterFunc(time.Second, s.log)
	}
	return now
}

// log writes one record for all refusals since the last.
func (s *spell) log() {
	s.logging.Store(false) // before they are counted, so that one which follows is logged next
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.logged == nil {
		s.logged = make(map[string]uint64)
	}
	var total uint64
	var each []any
	for _, r := range s.count() {
		if n := r.count - s.logged[r.policy]; n > 0 {
			s.logged[r.policy] = r.count
			total += n
			if r.policy != "" {
				each = append(each, slog.Uint64(r.policy, n))
			}
		}
	}
	if total == 0 {
		return
	}
	attrs := []slog.Attr{
		slog.String(s.kind, s.name),
		slog.Uint64("refused", total),
		slog.Time("since", time.Unix(0, s.since.Load())),
	}
	if each != nil {
		attrs = append(attrs, slog.Group("policies", each...))
	}
	s.stats.log(slog.LevelInfo, fmt.Sprintf("headgate: refused %s in 1 s: %s %s", Grouped(total), s.kind, strconv.Quote(s.name)), attrs...)
}

// times returns since when there are refusals, and when the last was. Since is zero if there
// was none for a minute.
func (s *spell) times(now time.Time) (since, last time.Time) {
	at := s.last.Load()
	if at == 0 {
		return
	}
	last = time.Unix(0, at)
	if now.Sub(last) <= quiet {
		since = time.Unix(0, s.since.Load())
	}
	return since, last
}

// Grouped returns a number with commas.
func Grouped(n uint64) string {
	b := strconv.AppendUint(nil, n, 10)
	for i := len(b) - 3; i > 0; i -= 3 {
		b = append(b[:i], append([]byte{','}, b[i:]...)...)
	}
	return string(b)
}
