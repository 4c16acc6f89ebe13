package conformance

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/internal/redistest"
	"github.com/headgate/headgate/outgoing"
)

// Three processes share a limit through Redis, and the server that they call lowers its own in
// the middle: what one of them is told, all of them heed.
func TestAFleetHeedsOneRefusal(t *testing.T) {
	t.Parallel()
	const processes, workers, retryAfter = 3, 10, 2 * time.Second
	var requests, late, refused atomic.Int64
	var since atomic.Pointer[time.Time] // of the refusal
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		now := time.Now()
		switch first := since.Load(); {
		case requests.Add(1) == 200:
			since.Store(&now)
		case first == nil || now.Sub(*first) >= retryAfter:
			return
		default:
			late.Add(1)
		}
		refused.Add(1)
		w.Header().Set("Retry-After", "2")
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	defer server.Close()
	redisServer := redistest.Start(t)
	var all sync.WaitGroup
	for range processes {
		store, err := redisstore.Open("redis://"+redisServer.Addr(), redisstore.Config{Timeout: 20 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = store.Client().Close() })
		transport := &outgoing.Transport{Limiter: core.NewLimiter(store, "outgoing", core.SlidingLog(1000, time.Second)), Retries: 10}
		for range workers {
			all.Go(func() {
				client := http.Client{Transport: transport}
				for range 30 {
					r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, nil)
					if err != nil {
						t.Error(err)
						return
					}
					response, err := client.Do(r)
					if err != nil {
						t.Error(err)
						return
					}
					_ = response.Body.Close()
					if response.StatusCode != http.StatusOK {
						t.Error(response.Status)
					}
				}
			})
		}
	}
	all.Wait()
	if n := requests.Load(); n != processes*workers*30+refused.Load() {
		t.Errorf("%d requests, %d refused", n, refused.Load())
	}
	// Each worker can have had a request on its way.
	if n := late.Load(); n > processes*workers {
		t.Errorf("%d requests came after the refusal, before its time was over", n)
	}
}
