// Command instructions makes requests to one of the systems of package systems, for valgrind, which counts instructions:
// they are the same on a busy machine. Of two runs, the difference divided by that of the requests is a request's:
//
//	go build -o /tmp/instructions ./benchmarks/instructions
//	valgrind --tool=none true   # is it there?
//	valgrind --tool=lackey /tmp/instructions headgate admitted 20000
//	valgrind --tool=lackey /tmp/instructions headgate admitted 60000
//
// With core in the place of a system it makes decisions in memory under policies, which are texts with commas between:
//
//	valgrind --tool=lackey /tmp/instructions core 'token-bucket 1000000/second' 20000
package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/test/benchmarks/systems"
)

type writer struct {
	header http.Header
	status int
}

func (w *writer) Header() http.Header         { return w.header }
func (w *writer) WriteHeader(status int)      { w.status = status }
func (w *writer) Write(b []byte) (int, error) { return len(b), nil }

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: instructions SYSTEM admitted|refused REQUESTS")
		os.Exit(2)
	}
	debug.SetGCPercent(-1)
	l := systems.Limit{N: 90_000_049, Per: 100 * time.Second}
	if os.Args[2] == "refused" {
		l = systems.Limit{N: 10, Per: 24 * time.Hour}
	}
	n, _ := strconv.Atoi(os.Args[3])
	if os.Args[1] == "core" {
		decide(strings.Split(os.Args[2], ","), n)
		return
	}
	for _, s := range systems.All {
		if s.Name != os.Args[1] {
			continue
		}
		_, h, err := s.Handlers(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }), l)
		if err != nil {
			panic(err)
		}
		r := httptest.NewRequest("GET", "/", http.NoBody)
		r.RemoteAddr = "192.0.2.1:1234"
		w := &writer{header: make(http.Header)}
		for range n {
			clear(w.header)
			h.ServeHTTP(w, r)
		}
		fmt.Println(w.status)
	}
}

func decide(texts []string, n int) {
	var policies []core.Policy
	for i, text := range texts {
		var p core.Policy
		if err := p.UnmarshalText([]byte(text)); err != nil {
			panic(err)
		}
		policies = append(policies, p.Named(strconv.Itoa(i)))
	}
	l, ctx, allowed := core.NewLimiter(new(core.MemoryStore), "api", policies...), context.Background(), 0
	for range n {
		d, err := l.Allow(ctx, "2001:db8:1234:5678::/64")
		if err != nil {
			panic(err)
		}
		if d.Allowed {
			allowed++
		}
	}
	fmt.Println(allowed)
}
