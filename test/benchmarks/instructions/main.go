// Command instructions makes requests to one of the systems of package systems, for valgrind, which counts instructions:
// they are the same on a busy machine. Of two runs, the difference divided by that of the requests is a request's:
//
//	go build -o /tmp/instructions ./benchmarks/instructions
//	valgrind --tool=none true   # is it there?
//	valgrind --tool=lackey /tmp/instructions headgate admitted 20000
//	valgrind --tool=lackey /tmp/instructions headgate admitted 60000
package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime/debug"
	"strconv"
	"time"

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
