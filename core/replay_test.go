package core_test

import (
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/core"
)

var replayed = flag.Int("replayed", 3400, "how many of the 3,400 recorded `worlds` are replayed, each of 300 calls")

// A world is the calls of one number, the same each time: some limiters, and random calls about two keys.
const (
	worlds     = 3400
	worldCalls = 300
)

// recorded has a hash of the answers of each world, as the core before the redesign of 2026-11 gave them under the same
// clock: to a million calls.
const recorded = "testdata/answers.bin"

// A drawn policy is one as a text, and what the calls about it need to know.
type drawn struct {
	text   string
	most   int64
	period time.Duration
	calls  bool // it counts calls, and not units
}

func draw(r *rand.Rand, kind string) (p drawn) {
	limit := 1 + r.Int64N([]int64{1, 3, 10, 100, 1000}[r.IntN(5)])
	if kind != "sliding-log" && r.IntN(4) == 0 {
		limit = 1 + r.Int64N([]int64{1e6, 1e9}[r.IntN(2)])/1000*1000
	}
	if limit = min(limit, 1e9); kind == "sliding-log" { // reports must not fill it: what is above 1,024 was counted otherwise
		limit = 1 + limit%30
	}
	period := 1 + r.Int64N([]int64{3, 100, 10_000, 1e6, 3600e6, 86400e6}[r.IntN(6)])
	p.most = limit
	options := ""
	switch kind {
	case "token-bucket": // of which a unit takes whole microseconds
		period = max(period/limit, 1) * limit
		p.most = 1 + r.Int64N(2*limit)
		options = fmt.Sprintf(" burst %d", p.most)
		if r.IntN(3) == 0 {
			options += fmt.Sprintf(" debt %d", r.Int64N(p.most+1))
		}
	case "fixed-window":
		if r.IntN(2) == 0 {
			options = " from-first"
		}
	case "sliding-window":
		options = fmt.Sprintf(" resolution %d", 1+r.IntN(int(min(12, period))))
		if r.IntN(3) == 0 {
			options += " never-over"
		}
	case "min-interval":
		p.text, p.most, p.calls = fmt.Sprintf("min-interval %dus", period), 3, true
	}
	if kind != "token-bucket" && kind != "min-interval" && r.IntN(4) == 0 {
		options += " count-denied"
	}
	if p.period = time.Duration(period) * time.Microsecond; !p.calls {
		p.text = fmt.Sprintf("%s %d/%dus%s", kind, limit, period, options)
	}
	return p
}

// A subject answers the calls of a world.
type subject interface {
	limiter(name string, policies []string) error
	allow(limiter int, key string, n int64) (any, error)
	all(limiters []int, keys []string, n []int64) (any, error)
	peek(limiter int, key string) (any, error)
	report(limiter int, key string, n int64) (any, error)
	reset(limiter int, key string) error
	settle(receipt any, actual []int64) (uncovered int64, err error)
	write(w io.Writer, decision any) (allowed bool)
}

var kinds = []string{"token-bucket", "fixed-window", "sliding-window", "sliding-log", "min-interval"}

// play makes the calls of a world, and returns a hash of the answers, which texts gets.
func play(t *testing.T, number int, make func() subject, texts io.Writer) (hash uint64, played bool) {
	synctest.Test(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(uint64(number), 27))
		time.Sleep(time.Duration(r.Int64N(1e18)))
		s, h := make(), fnv.New64a()
		out := io.MultiWriter(h, texts)
		limiters, several := 1, number%6 == 5
		if several {
			limiters = 1 + r.IntN(3)
		}
		longest, most, calls, log := time.Duration(1), []int64{}, false, false
		// What a log counts above its limit was given back before what it has room for. So a world with a log has either.
		above := r.IntN(2) == 0
		for i := range limiters {
			policies, least := 1, int64(1<<50)
			if several {
				policies = 1 + r.IntN(3)
			}
			var list []string
			for range policies {
				kind := kinds[number%6%5]
				if several {
					kind = kinds[r.IntN(5)]
				}
				p := draw(r, kind)
				if kind == "sliding-log" {
					log = true
					if !above {
						p.text = strings.TrimSuffix(p.text, " count-denied")
					}
				}
				list = append(list, p.text)
				least, longest, calls = min(least, p.most), max(longest, p.period), calls || p.calls
			}
			if err := s.limiter(fmt.Sprint("l", i), list); err != nil {
				return // the numbers cannot be counted exactly
			}
			most = append(most, least)
		}
		played = true
		type receipt struct {
			of    any
			units []int64
		}
		var receipts []receipt
		for range worldCalls {
			pause(r, longest, most[0])
			l, key, n := r.IntN(limiters), fmt.Sprint("k", r.IntN(2)), int64(1)
			switch r.IntN(6) {
			case 0:
				n = r.Int64N(most[l] + 2)
			case 1:
				n = most[l]
			}
			switch op := r.IntN(20); {
			case op < 10 || !several && op < 14:
				d, err := s.allow(l, key, n)
				if fmt.Fprintln(out, "allow", l, key, n, err); err == nil && s.write(out, d) && n > 0 {
					receipts = append(receipts, receipt{d, []int64{n}})
				}
			case op < 14:
				var which []int
				var keys []string
				var units []int64
				for i := range limiters {
					if i > 0 && r.IntN(3) == 0 {
						continue
					}
					n := 1 + r.Int64N(most[i])
					switch r.IntN(10) {
					case 0, 1, 2, 3, 4:
						n = 1
					case 5:
						n = most[i] + 1
					}
					which, keys, units = append(which, i), append(keys, fmt.Sprint("k", r.IntN(2))), append(units, n)
				}
				d, err := s.all(which, keys, units)
				if fmt.Fprintln(out, "all", which, keys, units, err); err == nil && s.write(out, d) {
					receipts = append(receipts, receipt{d, units})
				}
			case op < 16:
				d, err := s.peek(l, key)
				if fmt.Fprintln(out, "peek", l, key, err); err == nil {
					s.write(out, d)
				}
			case op < 18 && len(receipts) > 0:
				i := len(receipts) - 1
				if r.IntN(2) == 0 {
					i = r.IntN(len(receipts))
				}
				x := receipts[i]
				receipts = append(receipts[:i], receipts[i+1:]...)
				var actual []int64
				for _, n := range x.units {
					a := r.Int64N(n + 1)
					if r.IntN(4) == 0 && !calls && (!log || above) {
						a = n + r.Int64N(n+3)
					}
					if r.IntN(2) == 0 {
						a = 0
					}
					if log && above {
						a = max(a, n)
					}
					actual = append(actual, a)
				}
				u, err := s.settle(x.of, actual)
				fmt.Fprintln(out, "settle", x.units, actual, u, err)
			case op == 18 && !calls && (!log || above):
				n := 1 + r.Int64N(2*most[l])
				d, err := s.report(l, key, n)
				if fmt.Fprintln(out, "report", l, key, n, err); err == nil {
					s.write(out, d)
				}
			case op == 19 && r.IntN(10) == 0:
				fmt.Fprintln(out, "reset", l, key, s.reset(l, key))
				receipts = nil
			}
		}
		hash = h.Sum64()
	})
	return hash, played
}

// pause sleeps for a time that is often short, and sometimes of about a period.
func pause(r *rand.Rand, period time.Duration, limit int64) {
	var d time.Duration
	switch r.IntN(8) {
	case 0, 1, 2:
	case 3, 4:
		d = time.Duration(r.Int64N(3000))
	case 5:
		d = time.Duration(r.Int64N(int64(period)/limit*3 + 1))
	case 6:
		d = time.Duration(r.Int64N(int64(period) + 1))
	case 7:
		d = time.Duration(r.Int64N(3*int64(period) + 1))
	}
	time.Sleep(d)
}

// present is the core as it is.
type present struct {
	store    core.MemoryStore
	limiters []*core.Limiter
}

func (s *present) limiter(name string, texts []string) (err error) {
	var policies []core.Policy
	for i, text := range texts {
		var p core.Policy
		if err := p.UnmarshalText([]byte(text)); err != nil {
			return err
		}
		policies = append(policies, p.Named(fmt.Sprint("p", i)))
	}
	s.limiters = append(s.limiters, core.NewLimiter(&s.store, name, policies...))
	return nil
}

func (s *present) allow(l int, key string, n int64) (any, error) {
	d, err := s.limiters[l].AllowN(context.Background(), key, n)
	return &d, err
}

func (s *present) all(which []int, keys []string, n []int64) (any, error) {
	var all []core.Charge
	for i, l := range which {
		all = append(all, s.limiters[l].Charge(keys[i], n[i]))
	}
	d, err := core.AllowAll(context.Background(), all...)
	return &d, err
}

func (s *present) peek(l int, key string) (any, error) {
	d, err := s.limiters[l].Peek(context.Background(), key)
	return &d, err
}

func (s *present) report(l int, key string, n int64) (any, error) {
	d, err := s.limiters[l].Report(context.Background(), key, n)
	return &d, err
}

func (s *present) reset(l int, key string) error {
	return s.limiters[l].Reset(context.Background(), key)
}

func (s *present) settle(receipt any, actual []int64) (int64, error) {
	d := receipt.(*core.Decision)
	err := d.Settle(context.Background(), actual...)
	return d.Uncovered, err
}

func (s *present) write(w io.Writer, decision any) bool {
	d := decision.(*core.Decision)
	for a := range d.Answers() {
		fmt.Fprintln(w, a.Limiter, a.Policy, a.Allowed, a.Limit, a.Window, a.Remaining, a.NextAfter, a.ResetAfter, a.RetryAfter)
	}
	fmt.Fprintln(w, d.Allowed, d.Limiter, d.Policy, d.Limit, d.Remaining, d.Uncovered, d.RetryAfter, d.ResetAfter)
	return d.Allowed
}

// The core answers as it did before, in every field. Not recorded is what was changed: buckets of which a unit takes no
// whole number of microseconds, plans of which a period or a bucket differs, and reports of a MinInterval.
func TestReplay(t *testing.T) {
	hashes, err := os.ReadFile(recorded)
	if err != nil || len(hashes) != 8*worlds {
		t.Fatal(len(hashes), err)
	}
	n := min(*replayed, worlds)
	for i := range n {
		number := i * (worlds / n)
		got, played := play(t, number, func() subject { return new(present) }, io.Discard)
		if want := binary.BigEndian.Uint64(hashes[8*number:]); played && want != 0 && got != want {
			t.Fatalf("world %d: the answers differ", number)
		}
	}
}
