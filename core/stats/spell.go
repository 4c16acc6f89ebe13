package stats

import (
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// quiet is the time without a refusal that ends a spell.
const quiet = time.Minute

// A spell is a time in which refusals follow each other within a minute. Its end is not noted: who reads sees that the
// last refusal was long ago. So a Stats needs no goroutine that watches the time, and no Close.
type spell struct {
	startNanos atomic.Int64 // nanoseconds since 1970; 0 before the first refusal
	lastNanos  atomic.Int64
	logging    atomic.Bool // a record is to be written within a second
	mu         sync.Mutex  // while one is written
}

// extend notes a refusal, which has been counted. The counts come first: the record that is planned here tells of what
// is counted when it is written.
func (g *group) extend(now time.Time) {
	s := &g.spell
	// Many goroutines may do this at once. It does not matter which of them begins the spell.
	last := s.lastNanos.Swap(now.UnixNano())
	if now.UnixNano()-last > int64(quiet) {
		s.startNanos.Store(now.UnixNano())
	}
	if g.stats.config.Logger == nil || s.logging.Load() { // to load it takes less time than to swap it
		return
	}
	// The first refusal plans the record of a second. So a flood writes one line each second, and the last of it is
	// told, too.
	if s.logging.CompareAndSwap(false, true) {
		time.AfterFunc(time.Second, g.log)
	}
}

// log writes one record for all refusals since the last.
func (g *group) log() {
	g.spell.logging.Store(false) // before they are counted, so that one which follows is logged next
	g.spell.mu.Lock()
	defer g.spell.mu.Unlock()
	var total uint64
	var each []any
	// Of a policy, only what was counted since the last record: the counts themselves never go back.
	for _, policy := range g.policies.all() {
		n := policy.refused.charges() - policy.logged
		if n > 0 {
			policy.logged += n
			total += n
			each = append(each, slog.Uint64(policy.name, n))
		}
	}
	// Another record may have told of all, as both were due.
	if total == 0 {
		return
	}
	attrs := []slog.Attr{
		slog.String(g.kind, g.name),
		slog.Uint64("refused", total),
		slog.Time("since", time.Unix(0, g.spell.startNanos.Load())),
	}
	if g.kind == "limiter" {
		attrs = append(attrs, slog.Group("policies", each...))
	}
	text := fmt.Sprintf("headgate: refused %s in 1 s: %s %s", grouped(total), g.kind, strconv.Quote(g.name))
	g.stats.log(slog.LevelInfo, text, attrs...)
}

// times returns since when there are refusals, and when the last was. Since is zero if there was none for a minute.
func (s *spell) times(now time.Time) (since, last time.Time) {
	at := s.lastNanos.Load()
	if at == 0 {
		return since, last
	}
	last = time.Unix(0, at)
	if now.Sub(last) <= quiet {
		since = time.Unix(0, s.startNanos.Load())
	}
	return since, last
}

// grouped returns a number with commas.
func grouped(n uint64) string {
	b := strconv.AppendUint(nil, n, 10)
	for i := len(b) - 3; i > 0; i -= 3 {
		b = append(b[:i], append([]byte{','}, b[i:]...)...)
	}
	return string(b)
}
