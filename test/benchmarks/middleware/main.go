// Command middleware measures what limits add to an HTTP request: headgate and other
// libraries around the same handler. Run it in the folder above:
//
//	go run ./benchmarks/middleware                      # ten rounds: two minutes
//	go run ./benchmarks/middleware -run 'headgate|gin'  # some systems
//
// The systems take turns, a slice of some requests each, without the limit and then with it.
// Rates have a fraction: 90,000,049 in 100 seconds is no whole number of microseconds for
// each unit.
package main

import (
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"runtime"
	"testing"
	"time"

	"github.com/headgate/headgate/test/benchmarks/systems"
	"github.com/headgate/headgate/test/benchmarks/turns"
)

var (
	never = systems.Limit{N: 90_000_049, Per: 100 * time.Second} // is not reached
	small = systems.Limit{N: 10, Per: 24 * time.Hour}
)

// clients are where requests come from, in turn.
var clients = []struct {
	name string
	n    int
	addr func(i int) string
}{
	{"one client, IPv4", 1, ipv4},
	{"one client, IPv6", 1, ipv6},
	{"a thousand clients, IPv4", 1000, ipv4},
}

func ipv4(i int) string { return fmt.Sprintf("192.%d.%d.1:1234", i/256, i%256) }

func ipv6(i int) string {
	return fmt.Sprintf("[2001:db8:85a3:%x:5678:8a2e:370:7334]:51234", i)
}

// perSlice is the number of requests of a slice without the limit, and with it: of many
// clients, several of each, since other systems have used the caches meanwhile.
func perSlice(clients int) int { return max(100, 5*clients) }

func main() {
	rounds := flag.Int("rounds", 10, "how many `rounds`; their medians and ranges are reported")
	slices := flag.Int("slices", 200, "how many `slices` of 100 requests, or fewer of more, each system has in a round")
	run := flag.String("run", "", "measure only the systems that match this `regexp`")
	flag.Parse()
	which, err := regexp.Compile(*run)
	if err != nil || flag.NArg() > 0 || *rounds < 1 || *slices < 1 {
		flag.Usage()
		os.Exit(2)
	}
	runtime.GOMAXPROCS(1)
	fmt.Printf("%s, one processor; medians of %d rounds, and their ranges. What a limit adds to a request:\n", runtime.Version(), *rounds)
	for _, from := range clients {
		for _, sc := range []struct {
			name   string
			limit  systems.Limit
			status int
		}{
			{"admitted", never, http.StatusNoContent},
			{"refused", small, http.StatusTooManyRequests},
		} {
			requests := make([]*http.Request, from.n)
			for i := range requests {
				requests[i] = request(from.addr(i))
			}
			subjects, err := subjects(which, sc.limit, requests, sc.status)
			if err != nil {
				fmt.Fprintln(os.Stderr, "middleware:", err)
				os.Exit(1)
			}
			title := sc.name + ": " + from.name
			fmt.Print(turns.Report(title, subjects, turns.Measure(subjects, *rounds, max(*slices*100/perSlice(from.n), 10))))
		}
	}
}

func subjects(which *regexp.Regexp, l systems.Limit, rs []*http.Request, want int) (all []turns.Subject, err error) {
	for _, s := range systems.All {
		if !which.MatchString(s.Name) {
			continue
		}
		bare, guarded, err := s.Handlers(http.HandlerFunc(work), l)
		if err != nil {
			return nil, err
		}
		w, n := newWriter(), perSlice(len(rs))
		for _, r := range rs {
			for range small.N {
				w.serve(guarded, r)
			}
			if got := w.serve(guarded, r); got != want {
				return nil, fmt.Errorf("%s: status %d, want %d", s.Name, got, want)
			}
		}
		all = append(all, turns.Subject{
			Name: s.Name,
			Slice: func() float64 {
				start := time.Now()
				w.times(n, bare, rs)
				without := turns.Since(start, n)
				start = time.Now()
				w.times(n, guarded, rs)
				return turns.Since(start, n) - without
			},
			Allocations: testing.AllocsPerRun(1000, func() { w.serve(guarded, rs[0]) }) -
				testing.AllocsPerRun(1000, func() { w.serve(bare, rs[0]) }),
			Rival: s.Fields && !s.Headgate(),
		})
	}
	return all, nil
}

func work(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }

func request(from string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
	r.RemoteAddr = from
	return r
}

// A writer discards the response. Its header is a map that is cleared for each request, so
// that only what systems put into it is measured.
type writer struct {
	header http.Header
	status int
}

func newWriter() *writer { return &writer{header: make(http.Header)} }

func (w *writer) serve(h http.Handler, r *http.Request) (status int) {
	clear(w.header)
	w.status = http.StatusOK
	h.ServeHTTP(w, r)
	return w.status
}

// times makes n requests, these in turn.
func (w *writer) times(n int, h http.Handler, rs []*http.Request) {
	for i := range n {
		w.serve(h, rs[i%len(rs)])
	}
}

func (w *writer) Header() http.Header         { return w.header }
func (w *writer) WriteHeader(status int)      { w.status = status }
func (w *writer) Write(b []byte) (int, error) { return len(b), nil }
