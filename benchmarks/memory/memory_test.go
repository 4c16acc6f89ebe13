package memory

import (
	"context"
	"math/rand/v2"
	"runtime"
	"runtime/metrics"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

var (
	never  = limit{1_000_000_000, 1000 * time.Second} // is not reached by a benchmark of some seconds
	small  = limit{10, 24 * time.Hour}
	normal = limit{100, time.Hour}
)

const million = 1_000_000

// BenchmarkHotAdmitted has one key, which is never refused.
func BenchmarkHotAdmitted(b *testing.B) {
	each(b, func(b *testing.B, s system) {
		allow := s.make(b, never)
		admitted, failed := parallel(b, allow, one)
		if admitted+failed != int64(b.N) {
			b.Fatalf("%d of %d admitted", admitted, b.N)
		}
	})
}

// BenchmarkHotRefused has one key, which is always refused.
func BenchmarkHotRefused(b *testing.B) {
	each(b, func(b *testing.B, s system) {
		allow := s.make(b, small)
		for range small.n {
			if ok, err := allow(b.Context(), key(0)); err != nil || !ok {
				b.Fatal(ok, err)
			}
		}
		if admitted, _ := parallel(b, allow, one); admitted > 0 {
			b.Fatalf("%d of %d admitted", admitted, b.N)
		}
	})
}

// BenchmarkUniform draws from a million keys that are all known.
func BenchmarkUniform(b *testing.B) {
	draw := rand.New(rand.NewPCG(1, 2))
	millionKeys(b, func() int { return draw.IntN(million) })
}

// BenchmarkZipf does so by Zipf's law: some keys are hot, and refused in the end.
func BenchmarkZipf(b *testing.B) {
	draw := rand.NewZipf(rand.New(rand.NewPCG(1, 2)), 1.1, 1, million-1)
	millionKeys(b, func() int { return int(draw.Uint64()) })
}

func millionKeys(b *testing.B, draw func() int) {
	const draws = 1 << 20
	// In the order of their use, so that to read them is not what takes the time.
	var text strings.Builder
	for range draws {
		text.WriteString(key(draw()))
	}
	size := len(key(0))
	from := func() func() string {
		i := rand.IntN(draws)
		return func() string {
			i = (i + 1) % draws
			return text.String()[i*size : (i+1)*size]
		}
	}
	var allow ask // of the system that runs, which is called with more and more b.N
	var running string
	each(b, func(b *testing.B, s system) {
		if running != s.name {
			allow, running = s.make(b, normal), s.name
			fill(b, allow)
		}
		parallel(b, allow, from)
	})
}

// BenchmarkMemory reports what a million keys take, each charged once: live bytes
// for each, and the milliseconds of CPU that a collection takes longer.
func BenchmarkMemory(b *testing.B) {
	each(b, func(b *testing.B, s system) {
		var bytes, work float64
		for b.Loop() {
			allow := s.make(b, normal)
			before, idle := heap(), collect()
			fill(b, allow)
			bytes += float64(heap() - before)
			work += (collect() - idle).Seconds()
			runtime.KeepAlive(allow)
		}
		b.ReportMetric(bytes/million/float64(b.N), "bytes/key")
		b.ReportMetric(1000*work/float64(b.N), "gc-ms")
		b.ReportMetric(0, "ns/op")
	})
}

// each runs a benchmark for every system.
func each(b *testing.B, run func(*testing.B, system)) {
	b.Helper()
	for _, s := range systems {
		b.Run("system="+s.name, func(b *testing.B) { run(b, s) })
	}
}

func (s system) make(b *testing.B, l limit) ask {
	b.Helper()
	allow, err := s.new(l)
	if err != nil {
		b.Fatal(err)
	}
	return allow
}

func fill(b *testing.B, allow ask) {
	b.Helper()
	ctx := context.Background()
	for i := range million {
		if ok, err := allow(ctx, key(i)); err != nil || !ok {
			b.Fatal(ok, err)
		}
	}
}

// one draws always the same key.
func one() func() string {
	k := key(0)
	return func() string { return k }
}

// parallel makes b.N decisions on all processors. Only throttled fails.
func parallel(b *testing.B, allow ask, keys func() func() string) (admitted, failed int64) {
	b.Helper()
	var yes, errs atomic.Int64
	ctx := context.Background()
	runtime.GC()
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		next := keys()
		var y, e int64
		for pb.Next() {
			ok, err := allow(ctx, next())
			if err != nil {
				e++
			} else if ok {
				y++
			}
		}
		yes.Add(y)
		errs.Add(e)
	})
	b.StopTimer()
	if n := errs.Load(); n > 0 {
		b.ReportMetric(float64(n)/float64(b.N), "errors/op")
	}
	return yes.Load(), errs.Load()
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
