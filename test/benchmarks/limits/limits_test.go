// Package limits measures limits of a document with 100,000 overrides.
package limits

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/limits"
	"github.com/headgate/headgate/internal/old/limits/yamldoc"
)

const overrides = 100_000

// document has overrides of 30 kinds, of which every hundredth is for a prefix.
func document() []byte {
	var b strings.Builder
	b.WriteString(`{"limits": {"api": {"default": "free", "plans": {
		"free": {"minute": "sliding-log 60/minute", "day": "fixed-window 1000/day"},
		"gold": {"minute": "sliding-log 600/minute", "day": "fixed-window 50000/day"}}, "overrides": [`)
	for i := range overrides {
		whom := fmt.Sprintf(`"key": "user-%d"`, i)
		if i%100 == 1 {
			whom = fmt.Sprintf(`"prefix": "tenant-%d:"`, i)
		}
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "\n{%s, \"policies\": {\"minute\": \"sliding-log %d/minute\"}, \"note\": \"ticket %d\"}", whom, 100+i%30, i)
	}
	b.WriteString("]}}}")
	return []byte(b.String())
}

func open(b *testing.B, text []byte) *limits.Limit {
	b.Helper()
	book, err := limits.Open(b.Context(), memstore.New(memstore.Config{}), false, limits.Bytes(text), limits.Config{Every: time.Hour, Timeout: time.Minute})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(book.Close)
	api, err := book.Limit("api")
	if err != nil {
		b.Fatal(err)
	}
	return api
}

// keys are of one sort, in an order that no cache knows.
func keys(format string, step, from int) []string {
	all := make([]string, 1<<14)
	for i := range all {
		n := i * 7919 % overrides
		all[i] = fmt.Sprintf(format, n-n%step+from)
	}
	return all
}

func BenchmarkFor(b *testing.B) {
	api := open(b, document())
	for _, c := range []struct {
		name string
		keys []string
	}{
		{"Key", keys("user-%d", 10, 0)},
		{"Prefix", keys("tenant-%d:user-1", 100, 1)},
		{"None", keys("nobody-%d", 1, 0)},
		{"OneKey", []string{"user-500"}},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			var l *core.Limiter
			for i := 0; b.Loop(); i++ {
				l = api.For("gold", c.keys[i%len(c.keys)])
			}
			runtime.KeepAlive(l)
		})
	}
}

// The whole of a decision in memory, with and without a document.
func BenchmarkAllow(b *testing.B) {
	api := open(b, document())
	limiter, err := core.New(memstore.New(memstore.Config{}), "api", core.FixedWindow(core.PerDay(1_000_000_000)))
	if err != nil {
		b.Fatal(err)
	}
	all := keys("user-%d", 10, 0)
	b.Run("Limiter", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			_, _ = limiter.Allow(b.Context(), all[i%len(all)])
		}
	})
	b.Run("LimiterAndFor", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			key := all[i%len(all)]
			runtime.KeepAlive(api.For("", key))
			_, _ = limiter.Allow(b.Context(), key)
		}
	})
}

// many is a document of plans and overrides whose policies differ from each other, so that there
// are as many pairs as the product.
func many(plans, overrides int) []byte {
	var b strings.Builder
	b.WriteString(`{"limits": {"api": {"default": "p0", "plans": {`)
	for i := range plans {
		fmt.Fprintf(&b, `%s"p%d": {"m": "sliding-log %d/minute"}`, comma(i), i, i+1)
	}
	b.WriteString(`}, "overrides": [`)
	for i := range overrides {
		fmt.Fprintf(&b, `%s{"key": "k%d", "policies": {"d": "fixed-window %d/day"}}`, comma(i), i, i+1)
	}
	b.WriteString("]}}}")
	return []byte(b.String())
}

func comma(i int) string {
	if i == 0 {
		return ""
	}
	return ","
}

// What many pairs of plans and overrides take until the document applies, and then.
func BenchmarkPairs(b *testing.B) {
	for _, c := range [][2]int{{2000, 2000}, {50, 10_000}} {
		b.Run(fmt.Sprintf("%dPlans%dOverrides", c[0], c[1]), func(b *testing.B) {
			text := many(c[0], c[1])
			b.ReportAllocs()
			for b.Loop() {
				before := heap()
				api := open(b, text)
				b.ReportMetric(float64(heap()-before)/(1<<20), "MiB")
				runtime.KeepAlive(api)
			}
		})
	}
}

// heap returns how much memory is in use.
func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// How long it takes until a document applies, and what it takes.
func BenchmarkReload(b *testing.B) {
	text := document()
	for name, decode := range map[string]limits.Decoder{"JSON": limits.DecodeJSON, "YAML": yamldoc.Decode} {
		b.Run(name, func(b *testing.B) {
			text := text
			if name == "YAML" {
				text = append([]byte("---\n"), append(text, "\n...\n"...)...)
			}
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				if _, err := limits.Parse(text, decode); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("Memory", func(b *testing.B) {
		for b.Loop() {
			before := heap()
			api := open(b, text)
			b.ReportMetric(float64(heap()-before)/overrides, "bytes/override")
			runtime.KeepAlive(api)
		}
	})
}
