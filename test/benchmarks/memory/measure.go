package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"regexp"
	"runtime"
	"runtime/metrics"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headgate/headgate/test/benchmarks/turns"
)

var (
	never  = limit{700_000_000, 1000 * time.Second} // is not reached
	small  = limit{10, 24 * time.Hour}
	normal = limit{100, time.Hour}
)

// A config has the values of the flags.
type config struct {
	rounds, slices, keys int
	run, work            *regexp.Regexp
}

// perSlice is the number of decisions of a slice, on each processor. On several it is larger,
// as they do not begin at the very same time.
func perSlice(procs int) int {
	if procs == 1 {
		return 1000
	}
	return 10_000
}

// keySize is the length of a key.
const keySize = len("2001:db8:85a3:1234:5678:8a2e:0370:7334")

// key returns the i-th key: an IPv6 address.
func key(i int) string {
	a := netip.MustParsePrefix("2001:db8:85a3::/48").Addr().As16()
	for j, b := range []int{i >> 24, i >> 16, i >> 8, i} {
		a[6+j] = byte(b)
	}
	return netip.AddrFrom16(a).StringExpanded()[:keySize]
}

// measure measures all work of all systems.
func (c *config) measure() error {
	for _, procs := range []int{1, 2} {
		for _, work := range []struct {
			name string
			run  func(title string, procs int) error
		}{
			{"hot key, admitted", func(title string, procs int) error {
				return c.hot(title, procs, never, takeOne)
			}},
			{"hot key, refused", func(title string, procs int) error {
				return c.hot(title, procs, small, takeOne)
			}},
			{"hot key, three units", func(title string, procs int) error {
				return c.hot(title, procs, never, takeThree)
			}},
			{"many keys, uniform", func(title string, procs int) error {
				draw := rand.New(rand.NewPCG(1, 2))
				return c.many(title, procs, func() int { return draw.IntN(c.keys) })
			}},
			{"many keys, by Zipf's law", func(title string, procs int) error {
				draw := rand.NewZipf(rand.New(rand.NewPCG(1, 2)), 1.1, 1, uint64(c.keys-1))
				return c.many(title, procs, func() int { return int(draw.Uint64()) })
			}},
		} {
			if procs > runtime.NumCPU() || !c.work.MatchString(work.name) {
				continue
			}
			title := fmt.Sprintf("%s, on %d processors", work.name, procs)
			runtime.GOMAXPROCS(procs)
			if err := work.run(title, procs); err != nil {
				return err
			}
		}
	}
	if c.work.MatchString("memory") {
		return c.memory()
	}
	return nil
}

// takeOne charges one unit.
func takeOne(t taker, key string) (bool, error) { return t.take(context.Background(), key) }

func takeThree(t taker, key string) (bool, error) {
	return t.(several).takeN(context.Background(), key, 3)
}

// hot has one key, which is always admitted or always refused.
func (c *config) hot(title string, procs int, l limit, take func(taker, string) (bool, error)) error {
	return c.turns(title, procs, l, func(s system, t taker) (func(from, n int) error, error) {
		k := key(0)
		if _, ok := t.(several); !ok && strings.Contains(title, "three") {
			return nil, nil // it cannot
		}
		for range small.n {
			if ok, err := t.take(context.Background(), k); err != nil || !ok {
				return nil, fmt.Errorf("%s: %t %w", s.name, ok, err)
			}
		}
		want := l == never
		return func(_, n int) error {
			for range n {
				ok, err := take(t, k)
				if err == nil && ok != want {
					return fmt.Errorf("%s: admitted %t", s.name, ok)
				}
				if err != nil && s.name != "throttled" { // which fails under contention
					return err
				}
			}
			return nil
		}, nil
	})
}

// many draws from keys that are all known.
func (c *config) many(title string, procs int, draw func() int) error {
	const draws = 1 << 20
	// In the order of their use, so that to read them is not what takes the time.
	var text strings.Builder
	for range draws {
		text.WriteString(key(draw()))
	}
	all := text.String()
	return c.turns(title, procs, normal, func(_ system, t taker) (func(from, n int) error, error) {
		if err := c.fill(t); err != nil {
			return nil, err
		}
		return func(from, n int) error {
			for i := range n {
				i = (from + i) % draws * keySize
				if _, err := takeOne(t, all[i:i+keySize]); err != nil {
					return err
				}
			}
			return nil
		}, nil
	})
}

func (c *config) fill(t taker) error {
	for i := range c.keys {
		if ok, err := takeOne(t, key(i)); err != nil || !ok {
			return fmt.Errorf("key %d: %t %w", i, ok, err)
		}
	}
	return nil
}

// turns measures the systems in turn. Work returns what does a slice of it, or nil if the
// system cannot.
func (c *config) turns(title string, procs int, l limit, work func(system, taker) (func(from, n int) error, error)) error {
	var all []turns.Subject
	var faults []error
	n := perSlice(procs)
	for _, s := range systems {
		if !c.run.MatchString(s.name) {
			continue
		}
		t, err := s.new(l)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		slice, err := work(s, t)
		if err != nil {
			return err
		}
		if slice == nil {
			continue
		}
		at := rand.IntN(1 << 20)
		all = append(all, turns.Subject{
			Name:  s.name,
			Rival: !s.headgate(),
			Slice: func() float64 {
				errs := make([]error, procs)
				took := together(procs, func(i int) { errs[i] = slice(at+i*n, n) })
				at += procs * n
				faults = append(faults, errs...)
				return float64(took) / float64(procs*n)
			},
			Allocations: testing.AllocsPerRun(10, func() { _ = slice(0, n) }) / float64(n),
		})
	}
	rounds := turns.Measure(all, c.rounds, c.slices)
	if i := slices.IndexFunc(faults, func(err error) bool { return err != nil }); i >= 0 {
		return faults[i]
	}
	fmt.Print(turns.Report(title, all, rounds))
	return nil
}

// together runs f once on each processor, and returns how long that took.
func together(procs int, f func(i int)) (took time.Duration) {
	if procs == 1 {
		start := time.Now()
		f(0)
		return time.Since(start)
	}
	for range mostTries {
		var shared time.Duration
		if took, shared = atOnce(procs, f); shared > took-took/20 {
			break
		}
	}
	return took
}

// mostTries is how often a slice is measured again because some of the processors had not begun, or
// were done, while others worked: other work on the machine takes processors away.
const mostTries = 50

// atOnce runs f once on each processor, and returns the time from the first beginning to the last
// end, and for how much of it all of them were at work.
func atOnce(procs int, f func(i int)) (took, shared time.Duration) {
	from, to := make([]time.Duration, procs), make([]time.Duration, procs)
	var ready atomic.Int32
	var done sync.WaitGroup
	start := time.Now()
	for i := range procs {
		done.Go(func() {
			runtime.LockOSThread() // for good: the thread ends with the goroutine
			pin(i)
			for ready.Add(1); ready.Load() < int32(procs); {
				runtime.Gosched()
			}
			from[i] = time.Since(start)
			f(i)
			to[i] = time.Since(start)
		})
	}
	done.Wait()
	return slices.Max(to) - slices.Min(from), slices.Min(to) - slices.Max(from)
}

// memory reports what many keys take, each charged once: live bytes for each, and the
// milliseconds of CPU that a collection takes longer.
func (c *config) memory() error {
	fmt.Printf("\n## memory of %d keys\n\n| system | bytes/key | ms of CPU for each collection |\n|---|--:|--:|\n", c.keys)
	for _, s := range systems {
		if !c.run.MatchString(s.name) {
			continue
		}
		t, err := s.new(normal)
		if err != nil {
			return err
		}
		before, idle := heap(), collect()
		if err := c.fill(t); err != nil {
			return err
		}
		bytes, work := heap()-before, collect()-idle
		runtime.KeepAlive(t)
		fmt.Printf("| %s | %.0f | %.0f |\n", s.name, float64(bytes)/float64(c.keys), max(1000*work.Seconds(), 0))
	}
	return nil
}

// heap returns the live bytes of the heap.
func heap() int64 {
	for range 3 { // what a finalizer held goes with the next collection
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// collect returns the CPU time of a garbage collection: the least of some.
func collect() time.Duration {
	least := 1e9
	for range 10 {
		before := spent()
		runtime.GC()
		least = min(least, spent()-before)
	}
	return time.Duration(least * float64(time.Second))
}

// spent returns the CPU seconds of all collections so far.
func spent() float64 {
	sample := []metrics.Sample{{Name: "/cpu/classes/gc/total:cpu-seconds"}}
	metrics.Read(sample)
	return sample[0].Value.Float64()
}
