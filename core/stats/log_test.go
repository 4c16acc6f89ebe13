package stats

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/bubble"
)

// TestLogHasOneRecordASecond for each limiter, and each refusal is in one of them.
func TestLogHasOneRecordASecond(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var log journal
		s := New(Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		m := storeOf(s)
		api := newLimiter(t, m, "api", core.FixedWindow(5, age).Named("day"), core.FixedWindow(1, age).Named("minute"))
		banned := newLimiter(t, m, "banned", core.Blocked())
		allow(t, api, "key", 1)
		for range 1204 {
			allow(t, api, "key", 1)
		}
		allow(t, api, "key", 6)
		allow(t, banned, "key", 1)
		if log.String() != "" {
			t.Errorf("written at once: %s", log.String())
		}
		time.Sleep(time.Second)
		synctest.Wait()
		allow(t, api, "key", 1) // a second later
		time.Sleep(time.Hour)
		synctest.Wait()
		var lines []string
		for line := range strings.Lines(log.String()) {
			_, line, _ = strings.Cut(line, "level=")
			lines = append(lines, line)
		}
		if len(lines) != 3 {
			t.Fatalf("%d records: %q", len(lines), lines)
		}
		if strings.Contains(lines[0], "banned") { // written in the same second
			lines[0], lines[1] = lines[1], lines[0]
		}
		for i, want := range []string{
			`INFO msg="headgate: refused 1,205 in 1 s: limiter \"api\"" limiter=api refused=1205 since=2000-01-01T00:00:00.000Z policies.minute=1204 policies.day=1`,
			`refused=1 since=`,
			`INFO msg="headgate: refused 1 in 1 s: limiter \"api\"" limiter=api refused=1 since=2000-01-01T00:00:00.000Z policies.minute=1`,
		} {
			if !strings.Contains(lines[i], want) {
				t.Errorf("%s\nis not %s", lines[i], want)
			}
		}
	})
}

// TestSinceIsWhenRefusalsBegan: a minute without any ends them.
func TestSinceIsWhenRefusalsBegan(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := New(Config{})
		banned := newLimiter(t, storeOf(s), "banned", core.Blocked())
		start := time.Now()
		at := func(name string, since, last time.Duration) {
			t.Helper()
			r := s.snapshot(true).Limiters[0]
			if since < 0 != r.RefusingSince.IsZero() || since >= 0 && !r.RefusingSince.Equal(start.Add(since)) || !r.LastRefused.Equal(start.Add(last)) {
				t.Errorf("%s: since %v, last %v", name, r.RefusingSince.Sub(start), r.LastRefused.Sub(start))
			}
		}
		allow(t, banned, "key", 1)
		at("at once", 0, 0)
		time.Sleep(time.Minute)
		allow(t, banned, "key", 1)
		at("after a minute", 0, time.Minute)
		time.Sleep(time.Minute + 1)
		at("after more than a minute", -1, time.Minute)
		allow(t, banned, "key", 1)
		at("anew", 2*time.Minute+1, 2*time.Minute+1)
	})
}

// TestPeriodsOfTop: what was refused long ago does not hide what is refused now.
func TestPeriodsOfTop(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := New(Config{ShowKeys: true})
		banned := newLimiter(t, storeOf(s), "banned", core.Blocked())
		top := func(want string) {
			t.Helper()
			r := s.snapshot(true).Limiters[0]
			var got []string
			for _, x := range []*topKeys{r.Top, r.TopBefore} {
				name := "-"
				if x != nil {
					name = x.Keys[0].Name
				}
				got = append(got, name)
			}
			if strings.Join(got, " ") != want {
				t.Errorf("%v: %v, want %s", time.Now(), got, want)
			}
		}
		allow(t, banned, "old", 1)
		top("old -")
		time.Sleep(15 * time.Minute)
		top("- old")
		allow(t, banned, "new", 1)
		top("new old")
		time.Sleep(15 * time.Minute)
		top("- new")
		time.Sleep(15 * time.Minute)
		top("- -")
	})
}

// A panicking handler of logs panics.
type panicking struct{ slog.Handler }

func (panicking) Handle(context.Context, slog.Record) error { panic("on purpose") }

// TestLoggerThatPanics ends no process, although it is called in goroutines of their own.
func TestLoggerThatPanics(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := New(Config{Logger: slog.New(panicking{slog.NewTextHandler(new(bytes.Buffer), nil)})})
		banned := newLimiter(t, storeOf(s), "banned", core.Blocked())
		for range 3 {
			allow(t, banned, "key", 1)
			time.Sleep(2 * time.Second)
			synctest.Wait()
		}
		s.Observer().Backend(nil).SlotsLost(1)
		if n := s.snapshot(true).Limiters[0].Counts[0].Charges; n != 3 {
			t.Errorf("%d counted", n)
		}
	})
}

// flush writes the records that are due.
func flush(s *Stats) {
	for _, l := range s.limiters.all() {
		l.log()
	}
	for _, k := range s.slots.all() {
		k.log()
	}
}

// A journal is what a logger has written.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}
