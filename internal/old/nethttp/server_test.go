package nethttp_test

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/nethttp"
)

// bare is a writer without any ability.
type bare struct{ http.ResponseWriter }

type withFlush struct{}

func (withFlush) Flush() {}

// withReadFrom counts the calls of its ReadFrom.
type withReadFrom struct{ calls *int }

func (w withReadFrom) ReadFrom(r io.Reader) (int64, error) {
	*w.calls++
	return io.Copy(io.Discard, r)
}

type withHijack struct{}

func (withHijack) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, nil }

// A recorded writer has Flush and Hijack exactly if the writer within has them. It
// always has ReadFrom, which calls the ReadFrom or else the Write within.
func TestAbilities(t *testing.T) {
	type (
		F = withFlush
		R = withReadFrom
		H = withHijack
	)
	inner := bare{httptest.NewRecorder()}
	calls := 0
	r := withReadFrom{&calls}
	var outcome nethttp.Outcome
	guard := newGuard(t, rules(nethttp.Rule{
		Limiter: memory(t, "api", core.Unlimited()), Key: header,
		Settle: func(_ *http.Request, o nethttp.Outcome) int64 {
			outcome = o
			return o.Cost
		},
	}))
	for _, w := range []http.ResponseWriter{
		inner,
		struct {
			bare
			F
		}{inner, F{}},
		struct {
			bare
			R
		}{inner, r},
		struct {
			bare
			F
			R
		}{inner, F{}, r},
		struct {
			bare
			H
		}{inner, H{}},
		struct {
			bare
			F
			H
		}{inner, F{}, H{}},
		struct {
			bare
			R
			H
		}{inner, r, H{}},
		struct {
			bare
			F
			R
			H
		}{inner, F{}, r, H{}},
	} {
		calls = 0
		guard.Handler(http.HandlerFunc(func(got http.ResponseWriter, _ *http.Request) {
			if got == w {
				t.Error("the writer is not recorded")
			}
			if a, b := abilities(got), abilities(w); a != b {
				t.Errorf("it can %s, the writer within %s", a, b)
			}
			if u, ok := got.(interface{ Unwrap() http.ResponseWriter }); !ok || u.Unwrap() != w {
				t.Error("Unwrap does not find the writer within")
			}
			source := io.LimitReader(strings.NewReader("12345"), 4) // it has no WriteTo
			if n, err := got.(io.ReaderFrom).ReadFrom(source); n != 4 || err != nil {
				t.Errorf("ReadFrom: %d, %v", n, err)
			}
		})).ServeHTTP(w, request("GET", "/", "X-Client", "anna"))
		if want := (nethttp.Outcome{Status: 200, Written: 4, Cost: 1}); outcome != want {
			t.Errorf("outcome %+v, want %+v", outcome, want)
		}
		want := 0
		if _, ok := w.(io.ReaderFrom); ok {
			want = 1
		}
		if calls != want {
			t.Errorf("%T: %d calls of the ReadFrom within, want %d", w, calls, want)
		}
	}
}

func abilities(w http.ResponseWriter) string {
	_, f := w.(http.Flusher)
	_, h := w.(http.Hijacker)
	return fmt.Sprintf("Flush %v, Hijack %v", f, h)
}

// fileReader reports whether ReadFrom was given the file itself, as sendfile needs.
type fileReader struct {
	http.ResponseWriter

	file bool
}

func (w *fileReader) ReadFrom(r io.Reader) (int64, error) {
	if limited, ok := r.(*io.LimitedReader); ok {
		r = limited.R
	}
	_, w.file = r.(interface {
		SyscallConn() (syscall.RawConn, error)
	})
	return io.Copy(io.Discard, r)
}

// A file reaches the ReadFrom of net/http as a file, through guards around each other.
func TestFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, send := range map[string]http.HandlerFunc{
		"ServeFile": func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, path) },
		"Copy": func(w http.ResponseWriter, _ *http.Request) {
			f, err := os.Open(path)
			if err != nil {
				t.Error(err)
				return
			}
			defer f.Close()
			if n, err := io.Copy(w, f); n != 7 || err != nil {
				t.Errorf("%d bytes, %v", n, err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			guard := func(name string) *nethttp.Guard {
				return newGuard(t, rules(nethttp.Rule{
					Limiter: memory(t, name, core.Unlimited()), Key: header, Settle: nethttp.StatedCost,
				}))
			}
			w := &fileReader{ResponseWriter: httptest.NewRecorder()}
			h := guard("outer").Handler(guard("inner").Handler(send))
			h.ServeHTTP(w, request("GET", "/", "X-Client", "anna"))
			if !w.file {
				t.Error("the ReadFrom within got no file")
			}
		})
	}
}

// wrapped is what other middleware makes of a writer: it can only be unwrapped.
type wrapped struct{ http.ResponseWriter }

func (w wrapped) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// A connection that is hijacked is noticed, however deep it was found.
func TestHijack(t *testing.T) {
	for _, test := range []struct {
		name   string
		wrap   bool
		hijack func(http.ResponseWriter) (net.Conn, *bufio.ReadWriter, error)
	}{
		{"by assertion", false, func(w http.ResponseWriter) (net.Conn, *bufio.ReadWriter, error) { return w.(http.Hijacker).Hijack() }},
		{"by controller", false, func(w http.ResponseWriter) (net.Conn, *bufio.ReadWriter, error) {
			return http.NewResponseController(w).Hijack()
		}},
		{"by assertion, wrapped", true, func(w http.ResponseWriter) (net.Conn, *bufio.ReadWriter, error) { return w.(http.Hijacker).Hijack() }},
		{"by controller, wrapped", true, func(w http.ResponseWriter) (net.Conn, *bufio.ReadWriter, error) {
			return http.NewResponseController(wrapped{w}).Hijack()
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			limiter := memory(t, "api", core.SlidingLog(core.PerHour(10)))
			c := rules(nethttp.Rule{Limiter: limiter, Key: header, Settle: func(*http.Request, nethttp.Outcome) int64 {
				t.Error("Settle was called")
				return 0
			}})
			done := make(chan struct{})
			h := newGuard(t, c).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				conn, rw, err := test.hijack(w)
				if err != nil {
					t.Error(err)
					return
				}
				defer conn.Close()
				fmt.Fprint(rw, "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nraw")
				rw.Flush()
			}))
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				defer close(done)
				if test.wrap {
					w = wrapped{w}
				}
				h.ServeHTTP(w, r)
			}))
			defer server.Close()
			if body := get(t, server, "/").body; body != "raw" {
				t.Errorf("body %q", body)
			}
			<-done
			if got := remaining(t, limiter, "anna"); got != 9 {
				t.Errorf("%d left: the charge does not stand", got)
			}
		})
	}
}

// Hijacking what cannot be hijacked is nothing.
func TestHijackThatFails(t *testing.T) {
	limiter := memory(t, "api", core.SlidingLog(core.PerHour(10)))
	guard := newGuard(t, rules(nethttp.Rule{Limiter: limiter, Key: header, Settle: only(501)}))
	w := struct {
		*httptest.ResponseRecorder
		failingHijack
	}{ResponseRecorder: httptest.NewRecorder()}
	guard.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if _, _, err := w.(http.Hijacker).Hijack(); err == nil {
			t.Error("no error")
		}
		w.WriteHeader(500)
	})).ServeHTTP(w, request("GET", "/", "X-Client", "anna"))
	if got := remaining(t, limiter, "anna"); got != 10 {
		t.Errorf("%d left", got)
	}
}

type failingHijack struct{}

func (failingHijack) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, net.ErrClosed }

type response struct {
	*http.Response

	body  string
	early []string // the Link fields of 103 Early Hints
}

func get(t *testing.T, s *httptest.Server, path string) response {
	t.Helper()
	var got response
	trace := &httptrace.ClientTrace{Got1xxResponse: func(_ int, h textproto.MIMEHeader) error {
		got.early = append(got.early, h.Get("Link"))
		return nil
	}}
	r, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), "GET", s.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Client", "anna")
	if got.Response, err = s.Client().Do(r); err != nil {
		t.Fatal(err)
	}
	defer got.Body.Close()
	body, err := io.ReadAll(got.Body)
	if err != nil {
		t.Fatal(err)
	}
	got.body = string(body)
	return got
}

// The real servers, with the response recorded and not.
func TestServers(t *testing.T) {
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		for _, watched := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s watched %v", proto, watched), func(t *testing.T) {
				limiter := memory(t, "api", core.SlidingLog(core.PerHour(4)))
				rule := nethttp.Rule{Limiter: limiter, Key: header}
				if watched {
					rule.Settle = only(200)
				}
				mux := http.NewServeMux()
				mux.HandleFunc("/hints", func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("Link", "</style.css>; rel=preload")
					w.WriteHeader(http.StatusEarlyHints)
					io.WriteString(w, "hinted")
				})
				mux.HandleFunc("/stream", func(w http.ResponseWriter, _ *http.Request) {
					for _, chunk := range []string{"one ", "two ", "three"} {
						io.WriteString(w, chunk)
						if err := http.NewResponseController(w).Flush(); err != nil {
							t.Error(err)
						}
						w.(http.Flusher).Flush()
					}
				})
				mux.HandleFunc("/copy", func(w http.ResponseWriter, _ *http.Request) { io.Copy(w, strings.NewReader("copied")) })
				mux.HandleFunc("/missing", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(404) })
				mux.HandleFunc("/hijack", func(w http.ResponseWriter, _ *http.Request) {
					if _, ok := w.(http.Hijacker); ok != (proto == "HTTP/1.1") {
						t.Errorf("Hijacker: %v", ok)
					}
				})
				server := httptest.NewUnstartedServer(newGuard(t, rules(rule)).Handler(mux))
				server.EnableHTTP2 = proto == "HTTP/2.0"
				server.TLS = &tls.Config{}
				server.StartTLS()
				defer server.Close()

				if watched {
					if r := get(t, server, "/missing"); r.StatusCode != 404 {
						t.Errorf("status %d", r.StatusCode)
					}
					wantRemaining(t, limiter, 4)
				}
				for i, test := range []struct{ path, body string }{
					{"/hints", "hinted"}, {"/stream", "one two three"}, {"/copy", "copied"}, {"/hijack", ""},
				} {
					r := get(t, server, test.path)
					if r.StatusCode != 200 || r.body != test.body || r.Proto != proto {
						t.Errorf("%s: %s %d %q", test.path, r.Proto, r.StatusCode, r.body)
					}
					wantHeader(t, r.Header, map[string]string{
						"RateLimit": fmt.Sprintf(`"api";r=%d;t=3600`, 3-i), "RateLimit-Policy": `"api";q=4;w=3600`,
					})
					if hinted := len(r.early) == 1; hinted != (test.path == "/hints") {
						t.Errorf("%s: early %q", test.path, r.early)
					}
				}
				r := get(t, server, "/hints")
				if r.StatusCode != 429 || r.ContentLength != int64(len(r.body)) || r.ContentLength <= 0 {
					t.Errorf("%d, %d bytes: %q", r.StatusCode, r.ContentLength, r.body)
				}
				wantProblem(t, []byte(r.body), 429, []string{"api"})
				wantHeader(t, r.Header, map[string]string{"RateLimit": `"api";r=0;t=3600`, "Retry-After": "3600"})
			})
		}
	}
}

func wantRemaining(t *testing.T, l *core.Limiter, want int64) {
	t.Helper()
	if got := remaining(t, l, "anna"); got != want {
		t.Errorf("%d left, want %d", got, want)
	}
}
