package outgoing_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/backend"
	"github.com/headgate/headgate/internal/bubble"
	"github.com/headgate/headgate/internal/memory"
	"github.com/headgate/headgate/internal/step"
	"github.com/headgate/headgate/internal/store"
	"github.com/headgate/headgate/outgoing"
)

// A server answers requests without a network, and notes when they came.
type server struct {
	mu     sync.Mutex
	answer func(i int, r *http.Request) *http.Response // to the i-th request
	start  time.Time
	came   []time.Duration
	bodies []string
}

func (s *server) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.start.IsZero() {
		s.start = time.Now()
	}
	s.came = append(s.came, time.Since(s.start))
	if r.Body != nil {
		b, _ := io.ReadAll(r.Body)
		r.Body.Close()
		s.bodies = append(s.bodies, string(b))
	}
	response := says(200)
	if s.answer != nil {
		response = s.answer(len(s.came)-1, r)
	}
	response.Request = r
	return response, nil
}

// says is a response with fields, names and values in turn.
func says(status int, fields ...string) *http.Response {
	h := make(http.Header)
	for i := 0; i < len(fields); i += 2 {
		h.Add(fields[i], fields[i+1])
	}
	return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(strings.NewReader("text"))}
}

func limiter(s core.Store, policies ...core.Policy) *core.Limiter {
	return core.NewLimiter(s, "outgoing", policies...)
}

func fetch(t *testing.T, tr http.RoundTripper, url string) (*http.Response, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	return tr.RoundTrip(r)
}

// Requests wait for the limit, each server for its own.
func TestTransportWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := new(server)
		tr := &outgoing.Transport{Base: s, Limiter: limiter(new(core.MemoryStore), core.TokenBucket(2, time.Second).Burst(1))}
		for _, url := range []string{"http://a/", "http://A:80/x", "http://b/", "http://a:81/", "http://a/", "https://a:443/", "https://a/"} {
			if _, err := fetch(t, tr, url); err != nil {
				t.Error(err)
			}
		}
		half := 500 * time.Millisecond
		if want := []time.Duration{0, half, half, half, 2 * half, 2 * half, 3 * half}; !slices.Equal(s.came, want) {
			t.Errorf("sent at %v, want %v", s.came, want)
		}
	})
}

// One refusal is enough for all who share the store, until its time is over, and not longer
// than a tenth of it more.
func TestOneRefusalStopsTheFleet(t *testing.T) {
	for name, policies := range map[string][]core.Policy{
		"a bucket": {core.TokenBucket(1000, time.Second)},
		"two":      {core.SlidingLog(100, time.Second).Named("second"), core.FixedWindow(100_000, time.Hour).Named("hour")},
		"no limit": {core.Unlimited()},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &server{answer: func(i int, _ *http.Request) *http.Response {
					if i == 40 {
						return says(429, "Retry-After", "30")
					}
					return says(200)
				}}
				store := new(core.MemoryStore)
				var all sync.WaitGroup
				for range 3 { // processes
					tr := &outgoing.Transport{Base: s, Limiter: limiter(store, policies...)}
					for range 20 {
						all.Go(func() {
							for range 10 {
								if _, err := fetch(t, tr, "http://a/"); err != nil {
									t.Error(err)
								}
								<-time.After(100 * time.Millisecond)
							}
						})
					}
				}
				all.Wait()
				if len(s.came) != 600 {
					t.Fatalf("%d requests", len(s.came))
				}
				refused := s.came[40]
				at := slices.IndexFunc(s.came, func(d time.Duration) bool { return d > refused })
				if pause := s.came[at] - refused; at > 60 || pause < 30*time.Second || pause > 31100*time.Millisecond {
					t.Errorf("refused the 41st, at %v; %d were sent before the pause of %v", refused, at, pause)
				}
			})
		})
	}
}

// Of several times that a server says the longest applies, and none for longer than MaxBlock.
func TestBlocksDoNotAddUp(t *testing.T) {
	for want, times := range map[time.Duration][]string{
		20 * time.Second: {"20", "5", "20", "10"},
		60 * time.Second: {"5", "31536000", "7", "99999999999999999999"},
	} {
		synctest.Test(t, func(t *testing.T) {
			var all sync.WaitGroup
			var asked sync.WaitGroup
			asked.Add(len(times))
			s := new(server)
			base := roundTripper(func(r *http.Request) (*http.Response, error) {
				response, err := s.RoundTrip(r)
				if i := r.Header.Get("I"); i != "" {
					asked.Done()
					asked.Wait() // all are in flight before the first is refused
					response = says(429, "Retry-After", i)
				}
				return response, err
			})
			tr := &outgoing.Transport{Base: base, Limiter: limiter(new(core.MemoryStore), core.Unlimited()), MaxBlock: time.Minute, MaxWait: time.Hour}
			for _, seconds := range times {
				all.Go(func() {
					r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://a/", nil)
					r.Header.Set("I", seconds)
					if response, err := tr.RoundTrip(r); err != nil || response.StatusCode != 429 {
						t.Error(response, err)
					}
				})
			}
			all.Wait()
			if _, err := fetch(t, tr, "http://b/"); err != nil || time.Since(s.start) != 0 {
				t.Errorf("another server is blocked: %v", err)
			}
			if _, err := fetch(t, tr, "http://a/"); err != nil {
				t.Error(err)
			}
			if waited := time.Since(s.start); waited < want || waited > want+time.Second+10*time.Millisecond {
				t.Errorf("blocked for %v, want %v", waited, want)
			}
		})
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// What is repeated, how often, and with its body.
func TestRetries(t *testing.T) {
	rewound := func() *http.Request {
		r, _ := http.NewRequest(http.MethodPost, "http://a/", strings.NewReader("body"))
		return r
	}
	for _, test := range []struct {
		name    string
		request *http.Request
		answer  []*http.Response // the last is repeated
		retries int
		wait    time.Duration
		sent    int
		status  int
	}{
		{"not asked to", rewound(), []*http.Response{says(429, "Retry-After", "1"), says(200)}, 0, 0, 1, 429},
		{"once", rewound(), []*http.Response{says(429, "Retry-After", "1"), says(200)}, 3, 0, 2, 200},
		{"a server that refuses everything", rewound(), []*http.Response{says(429)}, 3, 0, 4, 429},
		{"too long", rewound(), []*http.Response{says(429, "Retry-After", "20"), says(200)}, 3, 10 * time.Second, 1, 429},
		{"503, not idempotent", rewound(), []*http.Response{says(503, "Retry-After", "1"), says(200)}, 3, 0, 1, 503},
		{"503, idempotent", httpRequest(http.MethodPut, "body"), []*http.Response{says(503, "Retry-After", "1"), says(200)}, 3, 0, 2, 200},
		{"503 without a time", httpRequest(http.MethodGet, ""), []*http.Response{says(503), says(200)}, 3, 0, 1, 503},
		{"success with a time", httpRequest(http.MethodGet, ""), []*http.Response{says(200, "RateLimit", `"a";r=0;t=5`)}, 3, 0, 1, 200},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &server{answer: func(i int, _ *http.Request) *http.Response {
					response := *test.answer[min(i, len(test.answer)-1)]
					response.Body = says(0).Body
					return &response
				}}
				tr := &outgoing.Transport{Base: s, Limiter: limiter(new(core.MemoryStore), core.Unlimited()), Retries: test.retries, MaxWait: test.wait}
				response, err := tr.RoundTrip(test.request.WithContext(t.Context()))
				if err != nil || response.StatusCode != test.status || len(s.came) != test.sent {
					t.Errorf("%v, %v, sent %d times", response, err, len(s.came))
				}
				for i, body := range s.bodies {
					if body != "body" {
						t.Errorf("body %d: %q", i, body)
					}
				}
				if i := slices.IndexFunc(s.came, func(d time.Duration) bool { return d > 0 }); i > 0 && s.came[i] < time.Second {
					t.Errorf("repeated after %v", s.came[i])
				}
			})
		})
	}
	t.Run("a body that can be read once", func(t *testing.T) {
		s := &server{answer: func(int, *http.Request) *http.Response { return says(429) }}
		tr := &outgoing.Transport{Base: s, Limiter: limiter(new(core.MemoryStore), core.Unlimited()), Retries: 3}
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://a/", io.MultiReader(strings.NewReader("body")))
		if response, err := tr.RoundTrip(r); err != nil || response.StatusCode != 429 || len(s.came) != 1 {
			t.Errorf("%v, %v, sent %d times", response, err, len(s.came))
		}
	})
}

// If the limiter has no room for a repetition, the caller gets the refusal, with its body.
func TestNoRoomForTheRepetition(t *testing.T) {
	long := strings.Repeat("x", 64<<10) + "more"
	for _, test := range []struct {
		name, text, want string
		err              error
	}{
		{"short", "why", "why", nil},
		{"empty", "", "", nil},
		{"long", long, long[:64<<10], io.ErrUnexpectedEOF},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				body, copied := &closer{Reader: strings.NewReader(test.text)}, &closer{Reader: strings.NewReader("body")}
				s := &server{answer: func(int, *http.Request) *http.Response {
					response := says(429, "Retry-After", "1")
					response.Body = body
					return response
				}}
				tr := &outgoing.Transport{
					Base: s, Limiter: limiter(new(core.MemoryStore), core.SlidingLog(1, time.Hour)), Retries: 3,
				}
				r := httpRequest(http.MethodPost, "body")
				r.GetBody = func() (io.ReadCloser, error) { return copied, nil }
				response, err := tr.RoundTrip(r.WithContext(t.Context()))
				if err != nil || response.StatusCode != 429 || len(s.came) != 1 {
					t.Fatalf("%v, %v, sent %d times", response, err, len(s.came))
				}
				text, err := io.ReadAll(response.Body)
				if string(text) != test.want || !errors.Is(err, test.err) || response.Body.Close() != nil {
					t.Errorf("%d bytes, %v", len(text), err)
				}
				if synctest.Wait(); !body.closed || !copied.closed {
					t.Errorf("closed: %v, %v", body.closed, copied.closed)
				}
			})
		})
	}
}

// A request whose context ends while it waits to be repeated fails with that, and closes the
// bodies of the refusal and of its own copy.
func TestContextEndsBeforeTheRepetition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refusal, copied := &closer{Reader: strings.NewReader("text")}, &closer{Reader: strings.NewReader("body")}
		s := &server{answer: func(int, *http.Request) *http.Response {
			response := says(429, "Retry-After", "30")
			response.Body = refusal
			return response
		}}
		tr := &outgoing.Transport{Base: s, Limiter: limiter(new(core.MemoryStore), core.Unlimited()), Retries: 3}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		time.AfterFunc(5*time.Second, cancel)
		r := httpRequest(http.MethodPost, "body").WithContext(ctx)
		r.GetBody = func() (io.ReadCloser, error) { return copied, nil }
		start := time.Now()
		_, err := tr.RoundTrip(r)
		synctest.Wait() // for what is done in the background
		if !errors.Is(err, context.Canceled) || len(s.came) != 1 || time.Since(start) != 5*time.Second || !refusal.closed || !copied.closed {
			t.Errorf("after %v: %v, sent %d times, bodies closed: %v, %v", time.Since(start), err, len(s.came), refusal.closed, copied.closed)
		}
	})
}

func httpRequest(method, body string) *http.Request {
	var r *http.Request
	if body == "" {
		r, _ = http.NewRequest(method, "http://a/", nil)
	} else {
		r, _ = http.NewRequest(method, "http://a/", strings.NewReader(body))
	}
	return r
}

// A redirect to another host waits for that host's limit.
func TestRedirectsHaveTheirOwnKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{answer: func(_ int, r *http.Request) *http.Response {
			if r.URL.Host == "a" {
				return says(302, "Location", "http://b/")
			}
			return says(200)
		}}
		client := http.Client{Transport: &outgoing.Transport{
			Base: s, Limiter: limiter(new(core.MemoryStore), core.TokenBucket(1, time.Minute)), MaxWait: time.Hour,
		}}
		for range 2 {
			r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://a/", nil)
			response, err := client.Do(r)
			if err != nil || response.Request.URL.Host != "b" {
				t.Fatal(response, err)
			}
			response.Body.Close()
		}
		if want := []time.Duration{0, 0, time.Minute, time.Minute}; !slices.Equal(s.came, want) {
			t.Errorf("sent at %v, want %v", s.came, want)
		}
	})
}

type closer struct {
	io.Reader
	closed bool
}

func (c *closer) Close() error { c.closed = true; return nil }

// What is not sent fails with the reason, its body is closed, and nothing is charged.
func TestNotSent(t *testing.T) {
	errKey := errors.New("no key")
	for _, test := range []struct {
		name    string
		config  *outgoing.Transport
		context func(context.Context) (context.Context, context.CancelFunc)
		after   time.Duration
		want    error
	}{
		{"no key", &outgoing.Transport{Key: func(*http.Request) (string, error) { return "", errKey }}, nil, 0, errKey},
		{"too long", &outgoing.Transport{MaxWait: 10 * time.Second}, nil, 0, context.DeadlineExceeded},
		{"too long for the default", &outgoing.Transport{}, nil, 0, context.DeadlineExceeded},
		{"the caller's deadline", &outgoing.Transport{MaxWait: time.Hour}, func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, 10*time.Second)
		}, 0, context.DeadlineExceeded},
		{"canceled while waiting", &outgoing.Transport{MaxWait: time.Hour}, func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(5*time.Second, cancel)
			return ctx, cancel
		}, 5 * time.Second, context.Canceled},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := new(server)
				test.config.Base = s
				test.config.Limiter = limiter(new(core.MemoryStore), core.TokenBucket(1, 2*time.Minute))
				if _, err := test.config.Limiter.Allow(t.Context(), "http://a"); err != nil {
					t.Fatal(err)
				}
				ctx, cancel := t.Context(), context.CancelFunc(func() {})
				if test.context != nil {
					ctx, cancel = test.context(ctx)
				}
				defer cancel()
				body := &closer{Reader: strings.NewReader("body")}
				r, _ := http.NewRequestWithContext(ctx, http.MethodPost, "http://a/", body)
				start := time.Now()
				_, err := test.config.RoundTrip(r)
				if !errors.Is(err, test.want) || len(s.came) != 0 || !body.closed || time.Since(start) != test.after {
					t.Errorf("after %v: %v, sent %d times, closed %v", time.Since(start), err, len(s.came), body.closed)
				}
			})
		})
	}
}

func TestTransportConfig(t *testing.T) {
	l := limiter(new(core.MemoryStore), core.FixedWindow(10, time.Hour))
	var eight []core.Policy
	for i := range 8 {
		eight = append(eight, core.FixedWindow(10, time.Hour).Named(fmt.Sprint(i)))
	}
	for want, c := range map[string]*outgoing.Transport{
		"MaxWait":             {Limiter: l, MaxWait: -1},
		"MaxBlock":            {Limiter: l, MaxBlock: -1},
		"more than 8760h0m0s": {Limiter: l, MaxBlock: 365*24*time.Hour + 1},
		"Retries":             {Limiter: l, Retries: -1},
		"at most 7 policies":  {Limiter: limiter(new(core.MemoryStore), eight...)},
		"none of them named":  {Limiter: limiter(new(core.MemoryStore), core.FixedWindow(10, time.Hour).Named("server"))},
	} {
		c.Base = new(server)
		if _, err := fetch(t, c, "http://a/"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// Whatever MaxBlock is accepted, a key is blocked for so long.
func TestExtremeBlocks(t *testing.T) {
	const most = time.Duration(1<<63 - 1)
	for _, longest := range []time.Duration{
		1, time.Microsecond, time.Millisecond, time.Second, time.Hour, 365 * 24 * time.Hour,
	} {
		for _, fields := range [][]string{{"Retry-After", "99999999999999999999"}, {"Retry-After", "Fri, 31 Dec 9999 23:59:59 GMT"}, {"RateLimit", `"a";r=0;t=999999999999999`}} {
			bubble.Test(t, func(t *testing.T) {
				tr := &outgoing.Transport{
					Base:    &server{answer: func(int, *http.Request) *http.Response { return says(429, fields...) }},
					Limiter: limiter(new(core.MemoryStore), core.Unlimited()), MaxWait: most, MaxBlock: longest,
				}
				start := time.Now()
				for range 2 {
					if _, err := fetch(t, tr, "http://a/"); err != nil {
						t.Error(err)
					}
				}
				if waited := time.Since(start); waited < longest || waited > longest+time.Second+10*time.Millisecond {
					t.Errorf("%v: blocked for %v", longest, waited)
				}
			})
		}
	}
}

// A refusal by one server blocks no other, however alike their URLs are.
func TestServersDoNotBlockEachOther(t *testing.T) {
	for _, urls := range [][2]string{
		{"http://[2001:db8::1]:8080/", "http://[2001:db8::1:8080]/"},
		{"http://a/", "https://a/"},
		{"http://a/", "http://a:8080/"},
	} {
		bubble.Test(t, func(t *testing.T) {
			s := &server{answer: func(int, *http.Request) *http.Response { return says(429, "Retry-After", "30") }}
			tr := &outgoing.Transport{Base: s, Limiter: limiter(new(core.MemoryStore), core.Unlimited())}
			for _, url := range urls {
				if _, err := fetch(t, tr, url); err != nil {
					t.Error(err)
				}
			}
			if !slices.Equal(s.came, []time.Duration{0, 0}) {
				t.Errorf("%v: sent at %v", urls, s.came)
			}
		})
	}
}

// A failing store keeps no block: it fails with an error, or admits everything.
type failing struct {
	store.Rates

	observer *store.Observer
	err      error
}

// Backend implements [core.Store].
func (s *failing) Backend() *backend.Stores { return &backend.Stores{Rates: s, Observer: s.observer} }

func (s *failing) Ask(ctx context.Context, mode step.Mode, cells []step.Cell) (bool, error) {
	if mode == step.Allow {
		return s.Rates.Ask(ctx, mode, cells)
	}
	cells[0].Source = step.SourceOpen
	return true, s.err
}

// If a store does not keep a block, its Observer learns of it, and the request that was refused
// is not repeated any earlier.
func TestStoreDoesNotBlock(t *testing.T) {
	errStore := errors.New("no store")
	for name, c := range map[string]*failing{"fails": {err: errStore}, "is open": {}} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				var told []store.DecisionEvent
				c.Rates = memory.New(0)
				c.observer = &store.Observer{Decided: func(_ context.Context, e store.DecisionEvent) { told = append(told, e) }}
				s := &server{answer: func(i int, _ *http.Request) *http.Response {
					if i > 0 {
						return says(200)
					}
					return says(429, "Retry-After", "20")
				}}
				tr := &outgoing.Transport{Base: s, Limiter: limiter(c, core.Unlimited()), Retries: 1}
				response, err := fetch(t, tr, "http://a/")
				if err != nil || response.StatusCode != 200 || len(s.came) != 2 || s.came[1] < 20*time.Second {
					t.Errorf("%v, %v, sent at %v", response, err, s.came)
				}
				block := func(e store.DecisionEvent) bool {
					return e.Limiter == "outgoing" && errors.Is(e.Err, c.err) && (c.err != nil || e.Source == step.SourceOpen)
				}
				if len(told) != 3 || !block(told[1]) {
					t.Errorf("told of %+v", told)
				}
			})
		})
	}
}

// A hostileBody is one of a peer that wants to keep the caller.
type hostileBody struct {
	read   func([]byte) (int, error) // nil: silent until it is closed
	close  func()                    // nil: at once
	closed chan struct{}
	bytes  atomic.Int64
}

func (b *hostileBody) Read(p []byte) (n int, err error) {
	select {
	case <-b.closed:
		return 0, errors.New("closed")
	default:
	}
	if b.read == nil {
		<-b.closed
		return 0, errors.New("closed")
	}
	n, err = b.read(p)
	b.bytes.Add(int64(n))
	return n, err
}

func (b *hostileBody) Close() error {
	close(b.closed) // twice panics
	if b.close != nil {
		b.close()
	}
	return nil
}

// Whatever the body of a refusal does, the repetition is sent in time, and little of it is read.
func TestHostileBodies(t *testing.T) {
	for name, of := range map[string]func(end <-chan struct{}) *hostileBody{
		"silent": func(<-chan struct{}) *hostileBody { return &hostileBody{} },
		"trickling": func(<-chan struct{}) *hostileBody {
			return &hostileBody{read: func([]byte) (int, error) { <-time.After(100 * time.Millisecond); return 1, nil }}
		},
		"endless": func(<-chan struct{}) *hostileBody {
			return &hostileBody{read: func(p []byte) (int, error) { return len(p), nil }}
		},
		"broken": func(<-chan struct{}) *hostileBody {
			return &hostileBody{read: func([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }}
		},
		"silent, and cannot be closed": func(end <-chan struct{}) *hostileBody { return &hostileBody{close: func() { <-end }} },
		"empty, and cannot be closed": func(end <-chan struct{}) *hostileBody {
			return &hostileBody{read: func([]byte) (int, error) { return 0, io.EOF }, close: func() { <-end }}
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				body := of(t.Context().Done())
				body.closed = make(chan struct{})
				s := &server{answer: func(i int, _ *http.Request) *http.Response {
					if i > 0 {
						return says(200)
					}
					response := says(429, "Retry-After", "2")
					response.Body = body
					return response
				}}
				tr := &outgoing.Transport{Base: s, Limiter: limiter(new(core.MemoryStore), core.Unlimited()), Retries: 1, MaxWait: 3 * time.Second}
				response, err := fetch(t, tr, "http://a/")
				if err != nil || response.StatusCode != 200 || len(s.came) != 2 || s.came[1] > 2300*time.Millisecond {
					t.Errorf("%v, %v, sent at %v", response, err, s.came)
				}
				select {
				case <-body.closed:
				default:
					t.Error("the body was not closed")
				}
				if n := body.bytes.Load(); n > 64<<10 {
					t.Errorf("%d bytes were read", n)
				}
			})
		})
	}
	t.Run("none", func(t *testing.T) {
		bubble.Test(t, func(t *testing.T) {
			s := &server{answer: func(i int, _ *http.Request) *http.Response {
				if i > 0 {
					return says(200)
				}
				return &http.Response{StatusCode: 429}
			}}
			tr := &outgoing.Transport{Base: s, Limiter: limiter(new(core.MemoryStore), core.Unlimited()), Retries: 1}
			if response, err := fetch(t, tr, "http://a/"); err != nil || response.StatusCode != 200 {
				t.Errorf("%v, %v", response, err)
			}
		})
	})
}

// A peer that answers a refusal and then is silent loses its connection. One that ends it keeps
// it for the repetition.
func TestConnectionsAfterRefusals(t *testing.T) {
	t.Parallel()
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2.0"} {
		for _, silent := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, silent: %v", protocol, silent), func(t *testing.T) {
				t.Parallel()
				left := make(chan struct{})
				var mu sync.Mutex
				var from []string
				peer := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					mu.Lock()
					from = append(from, r.RemoteAddr)
					second := len(from) > 1
					mu.Unlock()
					if second {
						return
					}
					w.WriteHeader(429)
					_, _ = io.WriteString(w, "text")
					if silent {
						_ = http.NewResponseController(w).Flush()
						<-r.Context().Done()
						close(left)
					}
				}))
				peer.EnableHTTP2 = protocol == "HTTP/2.0"
				peer.StartTLS()
				defer peer.Close()
				tr := &outgoing.Transport{
					Base: peer.Client().Transport, Limiter: limiter(new(core.MemoryStore), core.Unlimited()), Retries: 1,
				}
				response, err := fetch(t, tr, peer.URL)
				if err != nil {
					t.Fatal(err)
				}
				defer response.Body.Close()
				if response.StatusCode != 200 || response.Proto != protocol {
					t.Error(response.Proto, response.Status)
				}
				if silent {
					<-left
				} else if from[0] != from[1] {
					t.Error("the connection was not used again")
				}
			})
		}
	}
}

// A key that is blocked for good is ErrNever, and an empty one an error: nothing is sent.
func TestNothingIsSent(t *testing.T) {
	s := new(core.MemoryStore)
	empty := func(*http.Request) (string, error) { return "", nil }
	for name, c := range map[string]struct {
		transport *outgoing.Transport
		never     bool
	}{
		"blocked":   {&outgoing.Transport{Limiter: core.NewLimiter(s, "blocked", core.Blocked())}, true},
		"empty key": {&outgoing.Transport{Key: empty}, false},
	} {
		far := new(server)
		c.transport.Base = far
		r, err := http.NewRequest(http.MethodGet, "http://example.org/", nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := c.transport.RoundTrip(r)
		if response != nil || err == nil || errors.Is(err, core.ErrNever) != c.never || len(far.came) != 0 {
			t.Errorf("%s: %v, %v", name, response, err)
		}
	}
}
