package main

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// A scenario is who asks, and for what.
type scenario struct {
	name       string
	goroutines int
	refused    bool // one key, which is over its limit, instead of random ones, which never are
	sample     int  // of so many decisions, the time of one is taken
}

var scenarios = []scenario{
	{"1 goroutine, random keys, admitted", 1, false, 1},
	{"64 goroutines, random keys, admitted", 64, false, 4},
	{"256 goroutines, random keys, admitted", 256, false, 4},
	{"64 goroutines, one key, refused", 64, true, 64},
}

// Figures are the results of one round, or the medians of several. From serverCPU on they
// are for each decision.
type figures struct {
	perSecond float64
	p50, p99  float64 // microseconds
	serverCPU float64 // microseconds
	clientCPU float64 // microseconds, of this process
	commands  float64
	allocs    float64
	errors    float64
	wrong     float64 // admitted what is over the limit, or refused what is not
}

// A contestant is a system that takes part.
type contestant struct {
	system
	opened
	admitted, refused ask
	found             [][]figures // by scenario, in order of the rounds
}

// A bench is one run of the program.
type bench struct {
	config
	server      *server
	names       []string
	contestants []*contestant
}

// open connects the systems and charges every key once, so that all of them are known.
func (b *bench) open(ctx context.Context) error {
	for i := range b.keys {
		b.names = append(b.names, fmt.Sprintf("client-%09d", i))
	}
	for i, s := range systems {
		if !b.run.MatchString(s.name) {
			continue
		}
		progressf("preparing %s", s.name)
		c, err := openSystem(ctx, s, redis.Options{Addr: b.server.addr, DB: i})
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		b.contestants = append(b.contestants, c)
		if err := c.fill(ctx, b.names); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

const hotKey = "hot-client-00001"

func openSystem(ctx context.Context, s system, at redis.Options) (*contestant, error) {
	o, err := s.open(at)
	if err != nil {
		return nil, err
	}
	c := &contestant{system: s, opened: o, found: make([][]figures, len(scenarios))}
	if c.admitted, err = o.ask(roomy); err != nil {
		return nil, err
	}
	if c.refused, err = o.ask(tight); err != nil {
		return nil, err
	}
	for range tight.n {
		if _, err := c.refused(ctx, hotKey); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (b *bench) close() {
	for _, c := range b.contestants {
		c.close()
	}
}

// fill charges each key once.
func (c *contestant) fill(ctx context.Context, keys []string) error {
	const workers = 64
	var next atomic.Int64
	errs := make(chan error, workers)
	for range workers {
		go func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(keys) {
					errs <- nil
					return
				}
				if _, err := c.admitted(ctx, keys[i]); err != nil {
					next.Store(int64(len(keys)))
					errs <- err
					return
				}
			}
		}()
	}
	var failed error
	for range workers {
		failed = cmp.Or(failed, <-errs)
	}
	return failed
}

// measure measures all round by round. The systems take turns in short slices, each time in
// another order, so that what else the machine does affects all of them alike.
func (b *bench) measure(ctx context.Context) error {
	all, done := b.rounds*len(scenarios)*b.slices, 0
	start := time.Now()
	for round := range b.rounds {
		for i, s := range scenarios {
			sums := make([]sum, len(b.contestants))
			for slice := range b.slices {
				left := "?"
				if done > 0 {
					left = (time.Since(start) / time.Duration(done) * time.Duration(all-done)).Round(time.Second).String()
				}
				progressf("round %d of %d, %s, slice %d of %d; %s left", round+1, b.rounds, s.name, slice+1, b.slices, left)
				for _, j := range rand.Perm(len(b.contestants)) {
					if err := b.once(ctx, b.contestants[j], s, &sums[j]); err != nil {
						return fmt.Errorf("%s: %w", b.contestants[j].name, err)
					}
				}
				done++
			}
			for j, c := range b.contestants {
				if sums[j].decisions > 0 {
					c.found[i] = append(c.found[i], sums[j].figures())
				}
			}
		}
	}
	progressf("measured in %v\n", time.Since(start).Round(time.Second))
	return ctx.Err()
}

// A sum is what was measured in the slices of a round.
type sum struct {
	tally

	elapsed              time.Duration
	serverCPU, clientCPU time.Duration
	commands             int64
	allocs               uint64
}

func (s *sum) figures() figures {
	slices.Sort(s.took)
	n := float64(s.decisions)
	return figures{
		perSecond: n / s.elapsed.Seconds(),
		p50:       s.percentile(50),
		p99:       s.percentile(99),
		serverCPU: micros(s.serverCPU) / n,
		clientCPU: micros(s.clientCPU) / n,
		commands:  float64(s.commands) / n,
		allocs:    float64(s.allocs) / n,
		errors:    float64(s.errors) / n,
		wrong:     float64(s.wrong) / n,
	}
}

// once measures one slice and adds it to the sum. It leaves out what has no figures: a
// pipeline in a scenario without anything to fill it with.
func (b *bench) once(ctx context.Context, c *contestant, s scenario, all *sum) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	workers := s.goroutines
	if c.batch > 0 {
		if workers /= c.batch; workers == 0 || s.refused {
			return nil
		}
	}
	runtime.GC()
	// Samples are not allocated while they are taken.
	each := make([]tally, workers)
	for i := range each {
		each[i].took = make([]time.Duration, 0, (1<<20)/b.slices/workers)
	}
	var before, after runtime.MemStats
	counted, err := b.server.count(ctx)
	if err != nil {
		return err
	}
	runtime.ReadMemStats(&before)
	used := ownCPU()

	var stop atomic.Bool
	var group sync.WaitGroup
	start := time.Now()
	time.AfterFunc(b.duration/time.Duration(b.slices), func() { stop.Store(true) })
	for i := range each {
		group.Go(func() { each[i].work(ctx, c, s, b.names, &stop) })
	}
	group.Wait()
	all.elapsed += time.Since(start)

	all.clientCPU += ownCPU() - used
	runtime.ReadMemStats(&after)
	now, err := b.server.count(ctx)
	if err != nil {
		return err
	}
	for i := range each {
		all.decisions += each[i].decisions
		all.wrong += each[i].wrong
		all.errors += each[i].errors
		all.took = append(all.took, each[i].took...)
	}
	all.serverCPU += now.cpu - counted.cpu
	all.commands += now.commands - counted.commands
	all.allocs += after.Mallocs - before.Mallocs
	return nil
}

// ownCPU returns the processor time that this process has used.
func ownCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// A tally is the work of one goroutine.
type tally struct {
	decisions, wrong, errors int
	took                     []time.Duration
}

// work makes decisions until it must stop.
func (t *tally) work(ctx context.Context, c *contestant, s scenario, names []string, stop *atomic.Bool) {
	rng := rand.New(rand.NewPCG(rand.Uint64(), 1))
	keys := make([]string, max(c.batch, 1))
	for calls := 0; !stop.Load(); calls++ {
		for i := range keys {
			keys[i] = hotKey
			if !s.refused {
				keys[i] = names[rng.IntN(len(names))]
			}
		}
		var start time.Time
		sampled := calls%s.sample == 0 && len(t.took) < cap(t.took)
		if sampled {
			start = time.Now()
		}
		var ok bool
		var err error
		switch {
		case c.batch > 0:
			ok, err = true, c.many(ctx, keys)
		case s.refused:
			ok, err = c.refused(ctx, keys[0])
		default:
			ok, err = c.admitted(ctx, keys[0])
		}
		if sampled {
			t.took = append(t.took, time.Since(start))
		}
		t.decisions += len(keys)
		if err != nil {
			t.errors += len(keys)
		} else if ok == s.refused {
			t.wrong += len(keys)
		}
	}
}

func (t *tally) percentile(p int) float64 {
	if len(t.took) == 0 {
		return 0
	}
	return micros(t.took[min(len(t.took)*p/100, len(t.took)-1)])
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// medians returns the median of each figure. Errors and wrong answers are the most
// of any round.
func medians(all []figures) figures {
	of := func(get func(figures) float64) float64 {
		var xs []float64
		for _, f := range all {
			xs = append(xs, get(f))
		}
		slices.Sort(xs)
		n := len(xs)
		return (xs[(n-1)/2] + xs[n/2]) / 2
	}
	m := figures{
		perSecond: of(func(f figures) float64 { return f.perSecond }),
		p50:       of(func(f figures) float64 { return f.p50 }),
		p99:       of(func(f figures) float64 { return f.p99 }),
		serverCPU: of(func(f figures) float64 { return f.serverCPU }),
		clientCPU: of(func(f figures) float64 { return f.clientCPU }),
		commands:  of(func(f figures) float64 { return f.commands }),
		allocs:    of(func(f figures) float64 { return f.allocs }),
	}
	for _, f := range all {
		m.errors, m.wrong = max(m.errors, f.errors), max(m.wrong, f.wrong)
	}
	return m
}

// progressf replaces the line that the terminal shows.
func progressf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "\r\x1b[K"+format, args...)
}
