package stats

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/internal/redistest"
	"github.com/headgate/headgate/internal/redistest/proctest"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

func TestMain(m *testing.M) { proctest.Main(m, proctest.Funcs{"serve": serve}) }

// serve is a server whose limit is in the Redis with that address.
func serve(args []string) error {
	seen := New(Config{})
	store, err := redisstore.Open("redis://"+args[0], redisstore.Config{
		Failure: redisstore.FailClosed, Timeout: time.Minute, Observers: []*core.Observer{seen.Observer()},
	})
	if err != nil {
		return err
	}
	guard := nethttp.Limit(store, "api", keyfuncs.Header("X-User"), core.FixedWindow(20, age))
	mux := http.NewServeMux()
	mux.Handle("/debug/", seen.Handler())
	mux.Handle("/", guard.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println("http://" + l.Addr().String())
	go func() { _ = http.Serve(l, mux) }()
	_, err = io.Copy(io.Discard, os.Stdin) // until the test ends
	return err
}

// TestFleet: what three servers count is, in all, what their client saw.
func TestFleet(t *testing.T) {
	server := redistest.Start(t)
	var urls []string
	for range 3 {
		urls = append(urls, proctest.Start(t, "serve", server.Addr()).Line())
	}
	var mu sync.Mutex
	seen := map[int]uint64{}
	var wg sync.WaitGroup
	for g := range 6 {
		wg.Go(func() {
			for i := range 60 {
				r, err := http.NewRequestWithContext(t.Context(), "GET", urls[(g+i)%3]+"/", nil)
				if err != nil {
					t.Error(err)
					return
				}
				r.Header.Set("X-User", strconv.Itoa(i%5))
				w, err := http.DefaultClient.Do(r)
				if err != nil {
					t.Error(err)
					return
				}
				_ = w.Body.Close()
				mu.Lock()
				seen[w.StatusCode]++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	counted := map[int]uint64{}
	for _, url := range urls {
		for name, n := range scrape(t, url+"/debug/metrics") {
			switch {
			case !strings.HasPrefix(name, `headgate_decisions_total{limiter="api",policy="api"`):
			case strings.Contains(name, `result="admitted"`):
				counted[200] += n
			case strings.Contains(name, `result="refused"`):
				counted[429] += n
			}
		}
	}
	if len(seen) != 2 || seen[200] != 100 || counted[200] != seen[200] || counted[429] != seen[429] {
		t.Errorf("the client saw %v, the servers counted %v", seen, counted)
	}
}

// scrape returns the samples of metrics that are integers.
func scrape(t *testing.T, url string) map[string]uint64 {
	t.Helper()
	r, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	samples := make(map[string]uint64)
	for lines := bufio.NewScanner(r.Body); lines.Scan(); {
		line := lines.Text()
		if i := strings.LastIndexByte(line, ' '); line[0] != '#' {
			if n, err := strconv.ParseUint(line[i+1:], 10, 64); err == nil {
				samples[line[:i]] = n
			}
		}
	}
	return samples
}

// TestPrometheusAcceptsTheText, with its program promtool.
func TestPrometheusAcceptsTheText(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		if os.Getenv("HEADGATE_REQUIRE") == "1" {
			t.Fatal("promtool is not installed; HEADGATE_REQUIRE=1 forbids to skip this test")
		}
		t.Skip("promtool is not installed: apt-get install prometheus")
	}
	c := exec.CommandContext(t.Context(), promtool, "check", "metrics")
	c.Stdin = get(t, scene(t, Config{}), "/metrics").Body
	if out, err := c.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("%v\n%s", err, out)
	}
}
