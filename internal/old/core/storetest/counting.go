package storetest

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/step"
)

// report reports n units, and fails the test on an error.
func (s *suite) report(l *core.Limiter, key string, n int64) (core.Decision, int64) {
	s.Helper()
	d, uncovered, err := l.Report(s.Context(), key, n)
	if err != nil {
		s.Fatal(err)
	}
	return d, uncovered
}

// reportCounts: what is reported counts, however much it is, and the wait that follows is enough and
// tight.
func (s *suite) reportCounts() {
	for name, p := range three() {
		for _, n := range []int64{1, 2, 3, 5, 12, step.MaxInt} {
			s.toBeginning(p.Window())
			l := s.limiter(name, p)
			key := strconv.FormatInt(n, 10)
			s.allow(l, key, 1)
			d, uncovered := s.report(l, key, n)
			left, over := max(2-n, 0), max(n-2, 0)
			if d.Allowed != (over == 0) || d.Remaining != left || uncovered != over || d.Limit != 3 || d.Source != core.SourceStore {
				s.Fatalf("%s: %d reported of 2 left: %v, %d left, %d uncovered", name, n, d, d.Remaining, uncovered)
			}
			if got := s.left(l, key); got != left {
				s.Errorf("%s: %d left after %d were reported, want %d", name, got, n, left)
			}
			if left > 0 {
				if d.RetryAfter != 0 {
					s.Errorf("%s: RetryAfter %v with %d left", name, d.RetryAfter, left)
				}
				continue
			}
			if a := d.Answer(0); d.RetryAfter <= 0 || a.RetryAfter != d.RetryAfter || a.Allowed != d.Allowed {
				s.Fatalf("%s: %v after %d were reported, answer %+v", name, d.RetryAfter, n, a)
			}
			if wait := s.allow(l, key, 1); wait.Allowed || wait.RetryAfter != d.RetryAfter && !p.CountsDenied() {
				s.Errorf("%s: a wait of %v after %d were reported, which said %v", name, wait.RetryAfter, n, d.RetryAfter)
			}
			if p.CountsDenied() {
				continue // the attempt above has counted
			}
			half := time.Microsecond
			s.Advance(d.RetryAfter - half)
			if early := s.allow(l, key, 1); early.Allowed {
				s.Errorf("%s: admitted before %v, after %d were reported", name, d.RetryAfter, n)
			}
			s.Advance(half)
			if late := s.allow(l, key, 1); !late.Allowed {
				s.Errorf("%s: refused after %v: %v", name, d.RetryAfter, late)
			}
		}
	}
}

// reportNeverAdmits: a report of any number, also where no window is open and where the key is unused,
// frees nothing; and a debt is bounded.
func (s *suite) reportNeverAdmits() {
	bucket := s.limiter("debt", core.TokenBucket(core.PerSecond(10), 20).Debt(30))
	if d, uncovered := s.report(bucket, "key", 1000); d.Allowed || uncovered != 980 || d.RetryAfter != 3100*time.Millisecond {
		s.Errorf("%v, %d uncovered, wait %v", d, uncovered, d.RetryAfter)
	}
	if d, uncovered := s.report(bucket, "key", 1); d.Allowed || uncovered != 1 || d.RetryAfter != 3100*time.Millisecond {
		s.Errorf("the debt grows: %v, %d uncovered, wait %v", d, uncovered, d.RetryAfter)
	}
	pace := s.limiter("pace", core.MinInterval(time.Second))
	if d, uncovered := s.report(pace, "key", 7); !d.Allowed || uncovered != 0 || d.RetryAfter != time.Second {
		s.Errorf("%v, %d uncovered, wait %v", d, uncovered, d.RetryAfter)
	}
	s.Advance(400 * time.Millisecond)
	if d, uncovered := s.report(pace, "key", 1); d.Allowed || uncovered != 1 || d.RetryAfter != time.Second {
		s.Errorf("%v, %d uncovered, wait %v", d, uncovered, d.RetryAfter)
	}
	if d := s.allow(pace, "key", 1); d.Allowed {
		s.Errorf("admitted %v after a call", 0)
	}
	for _, n := range []int64{0, -1} {
		if _, _, err := pace.Report(s.Context(), "key", n); !errors.Is(err, core.ErrCost) {
			s.Errorf("%d units reported: %v", n, err)
		}
	}
}

// anyway: of a call that refuses, what counts anyway is charged and nothing else, wherever it stands.
func (s *suite) anyway() {
	for name, p := range three() {
		full, other, used := s.limiter("full "+name, p), s.limiter("other "+name, p), s.limiter("used "+name, p)
		s.toBeginning(p.Window())
		s.allow(full, "key", 3)
		for turn, charges := range [][]core.Charge{
			{{Limiter: used, Key: "key", N: 1, Anyway: true}, {Limiter: full, Key: "key", N: 1}, {Limiter: other, Key: "key", N: 1}},
			{{Limiter: other, Key: "key", N: 1}, {Limiter: full, Key: "key", N: 1}, {Limiter: used, Key: "key", N: 5, Anyway: true}},
			{{Limiter: full, Key: "key", N: 4}, {Limiter: used, Key: "key", N: 1, Anyway: true}}, // by the numbers
		} {
			d, err := core.AllowAll(s.Context(), charges...)
			if err != nil {
				s.Fatal(err)
			}
			if d.Allowed || d.Limiter != full.Name() || d.RetryAfter <= 0 {
				s.Errorf("%s, call %d: %v by %s", name, turn, d, d.Limiter)
			}
			if err := d.Refund(context.WithoutCancel(s.Context())); !errors.Is(err, core.ErrSettled) {
				s.Errorf("%s, call %d: refunded: %v", name, turn, err)
			}
			if got, want := s.left(used, "key"), []int64{2, 0, 0}[turn]; got != want {
				s.Errorf("%s, call %d: %d left of what counts anyway, want %d", name, turn, got, want)
			}
		}
		if got := s.left(other, "key"); got != 3 && !p.CountsDenied() {
			s.Errorf("%s: %d left of what was refused with others", name, got)
		}
		d, err := core.AllowAll(s.Context(), core.Charge{Limiter: used, Key: "key", N: 1, Anyway: true}, core.Charge{Limiter: other, Key: "second", N: 2})
		if err != nil || !d.Allowed || d.RetryAfter != 0 || d.Answer(0).Allowed || d.Answer(0).RetryAfter <= 0 || !d.Answer(1).Allowed {
			s.Errorf("%s: what does not fit and counts anyway: %v, %v, answers %+v and %+v", name, d, err, d.Answer(0), d.Answer(1))
		}
		if err := d.Refund(context.WithoutCancel(s.Context())); err != nil {
			s.Error(err)
		}
		if got := s.left(other, "second"); got != 3 {
			s.Errorf("%s: %d left after a refund", name, got)
		}
		if got := s.left(used, "key"); got != 0 {
			s.Errorf("%s: %d given back of what had happened", name, got)
		}
	}
}

// checks: a charge of nothing charges nothing, fits up to the limit, and not above.
func (s *suite) checks() {
	for name, p := range three() {
		l, free := s.limiter(name, p), s.limiter("free "+name, p)
		s.toBeginning(p.Window())
		if d := s.allow(l, "key", 0); !d.Allowed || d.Remaining != 3 || s.left(l, "key") != 3 {
			s.Errorf("%s: a check of an unused key: %v", name, d)
		}
		s.allow(l, "key", 3)
		log := name == "SlidingLog"
		if d := s.allow(l, "key", 0); d.Allowed == log || log && d.RetryAfter != s.allow(l, "key", 1).RetryAfter {
			s.Errorf("%s: a check at the limit: %v", name, d)
		}
		s.report(l, "key", 1)
		d := s.allow(l, "key", 0)
		if d.Allowed || d.RetryAfter <= 0 {
			s.Errorf("%s: a check above the limit: %v", name, d)
		}
		all, err := core.AllowAll(s.Context(), core.Charge{Limiter: l, Key: "key"}, core.Charge{Limiter: free, Key: "key", N: 2})
		if err != nil || all.Allowed || all.RetryAfter != d.RetryAfter || s.left(free, "key") != 3 && !p.CountsDenied() {
			s.Errorf("%s: a check beside a charge: %v, %v; alone %v", name, all, err, d)
		}
		s.Advance(d.RetryAfter - time.Microsecond)
		if early := s.allow(l, "key", 0); early.Allowed {
			s.Errorf("%s: a check fits before %v", name, d.RetryAfter)
		}
		s.Advance(time.Microsecond)
		if late := s.allow(l, "key", 0); !late.Allowed {
			s.Errorf("%s: a check after %v: %v", name, d.RetryAfter, late)
		}
	}
	banned := s.limiter("banned", core.Blocked())
	if d := s.allow(banned, "key", 0); !d.Allowed {
		s.Errorf("a check of Blocked: %v", d)
	}
}

// settleCounts: what was used beyond the estimate counts, also beyond the limit.
func (s *suite) settleCounts() {
	for name, p := range three() {
		s.toBeginning(p.Window())
		settled, told := s.limiter(name+" settled", p), s.limiter(name+" reported", p)
		d := s.allow(settled, "key", 2)
		if uncovered, err := d.Settle(context.WithoutCancel(s.Context()), 5); err != nil || uncovered != 2 {
			s.Errorf("%s: %d uncovered, %v", name, uncovered, err)
		}
		s.allow(told, "key", 2)
		s.report(told, "key", 3)
		for range 3 {
			if a, b := s.allow(settled, "key", 0), s.allow(told, "key", 0); a.Allowed != b.Allowed || a.RetryAfter != b.RetryAfter {
				s.Errorf("%s: settled %v, reported %v", name, a, b)
			}
			s.Advance(p.Window() / 5)
		}
	}
}

// reportAndRefund: a refund of a charge gives back no more than it took, though more was reported since.
func (s *suite) reportAndRefund() {
	for name, p := range three() {
		s.toBeginning(p.Window())
		l := s.limiter(name, p)
		d := s.allow(l, "key", 2)
		s.report(l, "key", 4)
		if err := d.Refund(context.WithoutCancel(s.Context())); err != nil {
			s.Fatal(err)
		}
		if again := s.allow(l, "key", 1); again.Allowed {
			s.Errorf("%s: 4 are used of 3, and one more is admitted", name)
		}
	}
	pace := s.limiter("pace", core.MinInterval(time.Second))
	d := s.allow(pace, "key", 1)
	s.report(pace, "key", 1)
	if err := d.Refund(context.WithoutCancel(s.Context())); err != nil {
		s.Fatal(err)
	}
	if again := s.allow(pace, "key", 1); again.Allowed {
		s.Error("a call was reported at this instant, and another is admitted")
	}
}

// settledOnce: a copy of a decision does not settle it again.
func (s *suite) settledOnce() {
	l := s.limiter("api", core.FixedWindow(per(10, 400*24*time.Hour)))
	d, err := core.AllowAll(s.Context(), core.Charge{Limiter: l, Key: "key", N: 3}, core.Charge{Limiter: l, Key: "other", N: 3})
	if err != nil {
		s.Fatal(err)
	}
	one := s.allow(l, "key", 4)
	var done atomic.Int64
	s.hammer(20, 1, func(int) (core.Decision, error) {
		a, b := d, one // copies
		for _, err := range []error{a.Refund(context.WithoutCancel(s.Context())), b.Refund(context.WithoutCancel(s.Context()))} {
			if err == nil {
				done.Add(1)
			} else if !errors.Is(err, core.ErrSettled) {
				s.Error(err)
			}
		}
		return core.Decision{}, nil
	})
	if done.Load() != 2 || s.left(l, "key") != 10 || s.left(l, "other") != 10 {
		s.Errorf("2 decisions were refunded %d times", done.Load())
	}
}

// many: 64 charges are one decision.
func (s *suite) many() {
	long := per(3, 400*24*time.Hour)
	var charges []core.Charge
	for i := range 64 {
		p := []core.Policy{core.FixedWindow(long), core.TokenBucket(core.PerDay(1), 3), core.SlidingLog(long), core.SlidingWindow(long)}[i%4]
		charges = append(charges, core.Charge{Limiter: s.limiter("many"+strconv.Itoa(i%16), p), Key: "key" + strconv.Itoa(i/16), N: 1})
	}
	for turn, want := range []bool{true, true, true, false} {
		if d, err := core.PeekAll(s.Context(), charges...); err != nil || d.Allowed != want || d.Len() != 64 {
			s.Errorf("peek %d: %v, %v", turn, d, err)
		}
		if turn == 2 { // one is used up by another
			s.allow(charges[40].Limiter, charges[40].Key, 1)
			if d, err := core.AllowAll(s.Context(), charges...); err != nil || d.Allowed || d.Limiter != charges[40].Limiter.Name() {
				s.Errorf("refused by one: %v, %v", d, err)
			}
			charges[40].Key = "another"
		}
		if d, err := core.AllowAll(s.Context(), charges...); err != nil || d.Allowed != want || d.Len() != 64 {
			s.Errorf("call %d: %v, %v", turn, d, err)
		}
	}
	if d, uncovered, err := core.ReportAll(s.Context(), charges...); err != nil || d.Allowed || uncovered != 1 || d.Remaining != 0 {
		s.Errorf("reported: %v, %d uncovered, %v", d, uncovered, err)
	}
}

// exactWithReports: what is reported and admitted at once is never more than the limit, unless the
// reports alone are.
func (s *suite) exactWithReports() {
	const limit = 500
	long := per(limit, 400*24*time.Hour)
	for name, p := range map[string]core.Policy{
		"TokenBucket": core.TokenBucket(core.PerDay(1), limit), "FixedWindow": core.FixedWindow(long),
		"SlidingWindow": core.SlidingWindow(long), "SlidingLog": core.SlidingLog(long),
	} {
		l := s.limiter(name, p)
		var uncovered atomic.Int64
		admitted := s.hammer(60, 20, func(i int) (core.Decision, error) {
			if i%3 > 0 {
				return l.Allow(s.Context(), "key")
			}
			_, more, err := l.Report(s.Context(), "key", 2)
			uncovered.Add(more)
			return core.Decision{}, err
		})
		if got := admitted + 20*20*2 - uncovered.Load(); got != limit {
			s.Errorf("%s: %d admitted, and %d of 800 reported that did not fit", name, admitted, uncovered.Load())
		}
		if d := s.allow(l, "key", 0); d.Allowed && uncovered.Load() > 0 {
			s.Errorf("%s: above the limit by %d, and a check says otherwise: %v", name, uncovered.Load(), d)
		}
	}
}
