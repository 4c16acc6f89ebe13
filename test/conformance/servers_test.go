package conformance

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/nethttp"
)

// Real servers of both protocols, with the response recorded and not.
func TestServers(t *testing.T) {
	for _, f := range frameworks {
		for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
			for _, watched := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s %s watched %v", f.name, proto, watched), func(t *testing.T) {
					l := core.NewLimiter(new(core.MemoryStore), "api", core.SlidingLog(4, 24*time.Hour))
					outcomes := make(chan nethttp.Outcome, 10)
					r := rate(l)
					if watched {
						r.Settle = func(_ *http.Request, o nethttp.Outcome) int64 {
							outcomes <- o
							return o.Cost
						}
					}
					guard, err := nethttp.New(rates(r))
					if err != nil {
						t.Fatal(err)
					}
					read := make(chan struct{})
					ended := make(chan struct{}, 10)
					served := f.serve(guard, streams(t, read))
					server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						served.ServeHTTP(w, r)
						ended <- struct{}{}
					}))
					server.EnableHTTP2 = proto == "HTTP/2.0"
					server.StartTLS()
					defer server.Close()

					get := func(method, path string) *http.Response {
						r, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, nil)
						if err != nil {
							t.Fatal(err)
						}
						r.Header.Set("X-Client", "anna")
						resp, err := server.Client().Do(r)
						if err != nil {
							t.Fatal(err)
						}
						if resp.Proto != proto {
							t.Errorf("%s", resp.Proto)
						}
						return resp
					}
					outcome := func(want nethttp.Outcome) {
						t.Helper()
						if !watched {
							return
						}
						if got := <-outcomes; got != want {
							t.Errorf("outcome %+v, want %+v", got, want)
						}
					}

					// Each part arrives before the next one is written.
					for i, path := range []string{"/stream", "/events"} {
						resp := get("GET", path)
						want := fmt.Sprintf(`"api";r=%d;t=86400`, 3-i)
						if got := resp.Header.Get("RateLimit"); resp.StatusCode != 200 || got != want {
							t.Errorf("%s: %d, RateLimit: %s", path, resp.StatusCode, got)
						}
						lines := bufio.NewScanner(resp.Body)
						for n := range 3 {
							if !lines.Scan() || lines.Text() != fmt.Sprintf("data: %d", n) || !lines.Scan() {
								t.Fatalf("part %d: %q, %v", n, lines.Text(), lines.Err())
							}
							read <- struct{}{}
						}
						if lines.Scan() {
							t.Errorf("more: %q", lines.Text())
						}
						resp.Body.Close()
						outcome(nethttp.Outcome{Status: 200, Bytes: 27, Cost: 1})
					}

					resp := get("HEAD", "/plain")
					if resp.StatusCode != 202 || resp.Header.Get("RateLimit") == "" {
						t.Errorf("HEAD: %d %v", resp.StatusCode, resp.Header)
					}
					resp.Body.Close()
					outcome(nethttp.Outcome{Status: 202, Cost: 1})

					if proto == "HTTP/1.1" {
						resp = get("GET", "/hijack")
						body, _ := io.ReadAll(resp.Body)
						resp.Body.Close()
						if string(body) != "raw" {
							t.Errorf("hijacked: %q", body)
						}
						for range 4 { // the client may know before the guard does
							<-ended
						}
					} else {
						get("GET", "/plain").Body.Close()
						outcome(nethttp.Outcome{Status: 202, Bytes: 5, Cost: 1})
					}

					resp = get("GET", "/plain")
					body, _ := io.ReadAll(resp.Body)
					resp.Body.Close()
					if resp.StatusCode != 429 || resp.Header.Get("Content-Type") != problemOf(f) ||
						!strings.Contains(string(body), `"violated-policies":["api"]`) || resp.ContentLength != int64(len(body)) {
						t.Errorf("refused: %d %v %s", resp.StatusCode, resp.Header, body)
					}
					resp = get("HEAD", "/plain")
					if resp.StatusCode != 429 || resp.Header.Get("Retry-After") == "" {
						t.Errorf("refused HEAD: %d %v", resp.StatusCode, resp.Header)
					}
					resp.Body.Close()
					if len(outcomes) > 0 {
						t.Errorf("settled: %+v", <-outcomes) // Settle is not called for what was hijacked
					}
				})
			}
		}
	}
}

// problemOf returns the media type of refusals.
func problemOf(f framework) string {
	if strings.HasPrefix(f.name, "echo") { // whose own error handler answers
		return "application/json"
	}
	return "application/problem+json"
}

// streams writes part after part, each when the one before has been read.
func streams(t *testing.T, read <-chan struct{}) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/stream", "/events":
			if r.URL.Path == "/events" {
				w.Header().Set("Content-Type", "text/event-stream")
			}
			for n := range 3 {
				fmt.Fprintf(w, "data: %d\n\n", n)
				if r.URL.Path == "/events" {
					w.(http.Flusher).Flush()
				} else if err := http.NewResponseController(w).Flush(); err != nil {
					t.Error(err)
				}
				select {
				case <-read:
				case <-r.Context().Done():
				}
			}
		case "/hijack":
			conn, rw, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			fmt.Fprint(rw, "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nraw")
			rw.Flush()
		default:
			w.WriteHeader(202)
			if r.Method != http.MethodHead {
				io.WriteString(w, "hello")
			}
		}
	}
}
