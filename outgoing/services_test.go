package outgoing_test

import (
	"net/http"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/outgoing"
)

// eve is a Reader for ESI, the API of EVE Online, which answers 420 when a client has made too many errors.
func eve(r *http.Response, _ time.Time) time.Duration {
	if r.StatusCode != 420 {
		return 0
	}
	seconds, _ := strconv.Atoi(r.Header.Get("X-Esi-Error-Limit-Reset"))
	return time.Duration(seconds) * time.Second
}

// Refusals as services send them. The request itself, and the next one of the key, come no earlier than the service
// asks for; and only what it has refused for now is repeated.
func TestServices(t *testing.T) {
	const unlimited = time.Duration(0)
	github, openAI := []outgoing.Reader{outgoing.GitHub}, []outgoing.Reader{outgoing.OpenAI}
	for _, test := range []struct {
		name     string
		reads    []outgoing.Reader
		method   string
		status   int
		fields   []string
		asked    time.Duration // before which nothing may be sent
		repeated bool
	}{
		{"GitHub's limit, 403", github, "GET", 403, []string{"X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "in 40"}, 40 * time.Second, true},
		{"GitHub's limit, 429", github, "GET", 429, []string{"X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "in 40"}, 40 * time.Second, true},
		{"GitHub's limit, a POST", github, "POST", 403, []string{"X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "in 40"}, 40 * time.Second, false},
		{"GitHub's secondary limit, 403", github, "GET", 403, []string{"X-RateLimit-Remaining", "4000", "X-RateLimit-Reset", "in 3000", "Retry-After", "30"}, 30 * time.Second, true},
		{"GitHub's secondary limit, 429", github, "POST", 429, []string{"X-RateLimit-Remaining", "4000", "X-RateLimit-Reset", "in 3000", "Retry-After", "30"}, 30 * time.Second, true},
		{"GitHub's secondary limit, 403 without fields", github, "GET", 403, nil, time.Minute, true},
		{"GitHub's secondary limit, 429 without a time", github, "GET", 429, []string{"X-RateLimit-Remaining", "4000", "X-RateLimit-Reset", "in 3000"}, time.Minute, true},
		{"a permission that GitHub misses", github, "GET", 403, []string{"X-RateLimit-Remaining", "4000", "X-RateLimit-Reset", "in 3000"}, unlimited, false},
		{"a 404 of GitHub that used the last unit", github, "GET", 404, []string{"X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "in 40"}, 40 * time.Second, false},
		{"a 500 of GitHub that used the last unit", github, "GET", 500, []string{"X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "in 40"}, 40 * time.Second, false},
		{"a 403 of Discord that used the last unit", []outgoing.Reader{outgoing.Discord}, "GET", 403, []string{"X-RateLimit-Remaining", "0", "X-RateLimit-Reset-After", "4.5"}, 4500 * time.Millisecond, false},
		{"a 403 of anybody, without fields", nil, "GET", 403, nil, unlimited, false},
		{"a 403 of anybody, with a time", nil, "GET", 403, []string{"Retry-After", "30"}, 30 * time.Second, true},
		{"OpenAI", openAI, "POST", 429, []string{"X-Ratelimit-Remaining-Tokens", "0", "X-Ratelimit-Reset-Tokens", "1m6.5s"}, 66500 * time.Millisecond, true},
		{"Azure, seconds without a unit", openAI, "POST", 429, []string{"X-Ratelimit-Remaining-Tokens", "0", "X-Ratelimit-Reset-Tokens", "45"}, 45 * time.Second, true},
		{"Azure, milliseconds", openAI, "POST", 429, []string{"Retry-After-Ms", "20000"}, 20 * time.Second, true},
		{"Azure, both", openAI, "POST", 429, []string{"Retry-After-Ms", "19500.5", "Retry-After", "19"}, 19501 * time.Millisecond, true},
		{"a server of Envoy's, with decimals", nil, "GET", 503, []string{"Retry-After", "29.997"}, 29997 * time.Millisecond, true},
		{"a 429 with decimals", nil, "POST", 429, []string{"Retry-After", "29.997"}, 29997 * time.Millisecond, true},
		{"EVE", []outgoing.Reader{eve}, "GET", 420, []string{"X-Esi-Error-Limit-Remain", "0", "X-Esi-Error-Limit-Reset", "37"}, 37 * time.Second, true},
		{"EVE, a POST", []outgoing.Reader{eve}, "POST", 420, []string{"X-Esi-Error-Limit-Remain", "0", "X-Esi-Error-Limit-Reset", "37"}, 37 * time.Second, false},
		{"420 with a time", nil, "GET", 420, []string{"Retry-After", "37"}, 37 * time.Second, true},
		{"420 without a time", nil, "GET", 420, nil, time.Second, true},
		{"a lock that is taken", nil, "PUT", 423, []string{"Retry-After", "3"}, 3 * time.Second, true},
		{"a time of 0", nil, "GET", 500, []string{"Retry-After", "0"}, unlimited, false},
		{"503 that used the last unit", nil, "GET", 503, []string{"RateLimit", `"api";r=0;t=5`}, 5 * time.Second, false},
		{"a redirect with a time", nil, "GET", 302, []string{"Retry-After", "30"}, unlimited, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &server{answer: func(i int, _ *http.Request) *http.Response {
					if i > 0 {
						return says(200)
					}
					response := says(test.status, test.fields...)
					response.Header.Set("Date", time.Now().UTC().Format(http.TimeFormat))
					if reset := response.Header.Get("X-RateLimit-Reset"); reset != "" {
						var seconds int64
						seconds, _ = strconv.ParseInt(reset[len("in "):], 10, 64)
						response.Header.Set("X-RateLimit-Reset", strconv.FormatInt(time.Now().Unix()+seconds, 10))
					}
					return response
				}}
				tr := &outgoing.Transport{Base: s, Limiter: limiter(new(core.MemoryStore), core.Unlimited()), Retries: 2, Reads: test.reads, MaxWait: time.Hour}
				response, err := tr.RoundTrip(httpRequest(test.method, "").WithContext(t.Context()))
				want := test.status
				if test.repeated {
					want = 200
				}
				if err != nil || response.StatusCode != want {
					t.Fatalf("%v, %v", response, err)
				}
				if _, err := fetch(t, tr, "http://a/next"); err != nil {
					t.Error(err)
				}
				latest := test.asked + time.Second + 10*time.Millisecond
				if test.asked == unlimited {
					latest = 0
				}
				if s.came[1] < test.asked || s.came[1] > latest {
					t.Errorf("sent at %v, which was to be at %v", s.came, test.asked)
				}
			})
		})
	}
}

// What a response has cost is what it says: an answer from a cache is free, as GitHub's 304 is, and a question to
// several records may cost more than a unit.
func TestSettle(t *testing.T) {
	for _, test := range []struct {
		name   string
		settle func(*http.Request, *http.Response) int64
		used   int64
	}{
		{"nothing", func(_ *http.Request, response *http.Response) int64 {
			if response.StatusCode == http.StatusNotModified {
				return 0
			}
			return 1
		}, 1},
		{"as charged", func(*http.Request, *http.Response) int64 { return -1 }, 3},
		{"more", func(_ *http.Request, response *http.Response) int64 {
			if response.Request.Method == http.MethodGet {
				return 4
			}
			return 1
		}, 12},
		{"none", nil, 3},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := &server{answer: func(i int, _ *http.Request) *http.Response {
				if i > 0 {
					return says(304)
				}
				return says(200)
			}}
			l := limiter(new(core.MemoryStore), core.FixedWindow(20, time.Hour).Named("hour"), core.SlidingWindow(20, 24*time.Hour).Named("day"))
			tr := &outgoing.Transport{Base: s, Limiter: l, Settle: test.settle}
			for range 3 {
				if _, err := fetch(t, tr, "http://a/"); err != nil {
					t.Fatal(err)
				}
			}
			d, err := l.Peek(t.Context(), "http://a")
			if err != nil || d.Limit-d.Remaining != test.used {
				t.Errorf("%v, %v: want %d used", d, err, test.used)
			}
		})
	}
}

// Each repetition is a request of its own: it is charged, and settled. A request that got no response stays charged.
func TestSettleOfRepetitions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{answer: func(i int, _ *http.Request) *http.Response {
			if i < 2 {
				return says(429, "Retry-After", "1")
			}
			return says(200)
		}}
		store := new(core.MemoryStore)
		l := limiter(store, core.SlidingLog(5, time.Hour))
		base := http.RoundTripper(s)
		tr := &outgoing.Transport{
			Base: roundTripper(func(r *http.Request) (*http.Response, error) { return base.RoundTrip(r) }), Limiter: l, Retries: 3,
			Settle: func(_ *http.Request, response *http.Response) int64 {
				if response.StatusCode == http.StatusTooManyRequests {
					return 0
				}
				return 1
			},
		}
		if response, err := fetch(t, tr, "http://a/"); err != nil || response.StatusCode != 200 {
			t.Fatalf("%v, %v", response, err)
		}
		base = roundTripper(func(*http.Request) (*http.Response, error) { return nil, http.ErrServerClosed })
		if _, err := fetch(t, tr, "http://a/"); err == nil {
			t.Error("no error")
		}
		if d, err := l.Peek(t.Context(), "http://a"); err != nil || d.Remaining != 3 {
			t.Errorf("%v, %v", d, err)
		}
	})
}

// MaxBlock cuts a time, so that nobody is kept back for ever. But a repetition would be earlier than asked: there is none.
func TestNoRepetitionBeforeALongTime(t *testing.T) {
	for seconds, sent := range map[string]int{"59": 2, "60": 2, "61": 1} {
		synctest.Test(t, func(t *testing.T) {
			s := &server{answer: func(i int, _ *http.Request) *http.Response {
				if i > 0 {
					return says(200)
				}
				return says(429, "Retry-After", seconds)
			}}
			tr := &outgoing.Transport{Base: s, Limiter: limiter(new(core.MemoryStore), core.Unlimited()), Retries: 1, MaxWait: time.Hour, MaxBlock: time.Minute}
			if _, err := fetch(t, tr, "http://a/"); err != nil || len(s.came) != sent {
				t.Errorf("after %s s: sent at %v, %v", seconds, s.came, err)
			}
		})
	}
}
