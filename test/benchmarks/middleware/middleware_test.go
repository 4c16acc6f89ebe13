package main

import (
	"net/http"
	"testing"

	"github.com/headgate/headgate/test/benchmarks/systems"
)

func TestSystemsKeepTheLimit(t *testing.T) {
	for _, s := range systems.All {
		for _, from := range clients {
			t.Run(s.Name+"/"+from.name, func(t *testing.T) {
				bare, guarded, err := s.Handlers(http.HandlerFunc(work), small)
				if err != nil {
					t.Fatal(err)
				}
				w, r := newWriter(), request(from.addr(0))
				for i := range 2 * small.N {
					want := http.StatusNoContent
					if got := w.serve(bare, r); got != want {
						t.Fatalf("request %d, no limit: status %d", i+1, got)
					}
					if i >= small.N {
						want = http.StatusTooManyRequests
					}
					if got := w.serve(guarded, r); got != want {
						t.Fatalf("request %d: status %d, want %d", i+1, got, want)
					}
				}
			})
		}
	}
}
