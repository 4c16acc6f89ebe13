package nethttp_test

import (
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/nethttp"
	"github.com/headgate/headgate/keyfuncs"
)

func TestLimitReportsWhatIsWrong(t *testing.T) {
	key := keyfuncs.RemoteAddr()
	var none *memstore.Store
	for _, test := range []struct {
		name string
		make func() (*nethttp.Guard, error)
		want []string // in the error; none: there is no error
	}{
		{"fine", func() (*nethttp.Guard, error) { return nethttp.Limit("api", key, core.SlidingLog(core.PerMinute(60))) }, nil},
		{"unlimited", func() (*nethttp.Guard, error) { return nethttp.Limit("api", key, core.Unlimited()) }, nil},
		{"the most", func() (*nethttp.Guard, error) {
			return nethttp.Limit("api", key, core.SlidingLog(core.PerMinute(1<<20)))
		}, nil},
		{"no name", func() (*nethttp.Guard, error) { return nethttp.Limit("", key, core.SlidingLog(core.PerMinute(60))) }, []string{`limiter "": the name is empty`}},
		{"a name that no field can show", func() (*nethttp.Guard, error) {
			return nethttp.Limit("größe", key, core.SlidingLog(core.PerMinute(60)))
		}, []string{`only printable ASCII`}},
		{"no key", func() (*nethttp.Guard, error) { return nethttp.Limit("api", nil, core.SlidingLog(core.PerMinute(60))) }, []string{`limit "api": the key is nil: say who is charged`}},
		{"no policy", func() (*nethttp.Guard, error) { return nethttp.Limit("api", key) }, []string{`1 to 8 policies, not 0`}},
		{"the zero policy", func() (*nethttp.Guard, error) { return nethttp.Limit("api", key, core.Policy{}) }, []string{`limiter "api"`}},
		{"a rate of 0", func() (*nethttp.Guard, error) { return nethttp.Limit("api", key, core.SlidingLog(core.PerMinute(0))) }, []string{`limiter "api"`}},
		{"a negative rate", func() (*nethttp.Guard, error) {
			return nethttp.Limit("api", key, core.TokenBucket(core.PerMinute(-1), 5))
		}, []string{`limiter "api"`}},
		{"a huge rate", func() (*nethttp.Guard, error) {
			return nethttp.Limit("api", key, core.FixedWindow(core.PerDay(math.MaxInt64)))
		}, []string{`limiter "api"`}},
		{"two without names", func() (*nethttp.Guard, error) {
			return nethttp.Limit("api", key, core.SlidingLog(core.PerMinute(60)), core.FixedWindow(core.PerDay(9)))
		}, []string{`each of several policies needs a name`}},
		{"everything", func() (*nethttp.Guard, error) { return nethttp.Limit("", nil, core.SlidingLog(core.PerMinute(0))) }, []string{`the name is empty`, `the key is nil`, `limiter "": `}},
		{"no store", func() (*nethttp.Guard, error) {
			return nethttp.LimitIn(nil, "api", key, core.SlidingLog(core.PerMinute(60)))
		}, []string{`the store is nil`}},
		{"a nil store", func() (*nethttp.Guard, error) {
			return nethttp.LimitIn(none, "api", key, core.SlidingLog(core.PerMinute(60)))
		}, []string{`the store is a nil *memstore.Store`}},
		{"in flight, fine", func() (*nethttp.Guard, error) { return nethttp.InFlight("ws", key, 5) }, nil},
		{"in flight, none at all", func() (*nethttp.Guard, error) { return nethttp.InFlight("ws", key, 0) }, nil},
		{"in flight, no limit", func() (*nethttp.Guard, error) { return nethttp.InFlight("ws", key, core.NoLimit) }, nil},
		{"in flight, no name", func() (*nethttp.Guard, error) { return nethttp.InFlight("", key, 5) }, []string{`slots "": the name is empty`}},
		{"in flight, a name that no field can show", func() (*nethttp.Guard, error) { return nethttp.InFlight("größe", key, 5) }, []string{`only printable ASCII`}},
		{"in flight, no key", func() (*nethttp.Guard, error) { return nethttp.InFlight("ws", nil, 5) }, []string{`limit "ws": the key is nil: say whose`}},
		{"in flight, a negative limit", func() (*nethttp.Guard, error) { return nethttp.InFlight("ws", key, -1) }, []string{`a limit of -1 slots`}},
		{"in flight, a huge limit", func() (*nethttp.Guard, error) { return nethttp.InFlight("ws", key, math.MaxInt64) }, []string{`slots is not 0 to`}},
		{"in flight, everything", func() (*nethttp.Guard, error) { return nethttp.InFlight("", nil, -1) }, []string{`the name is empty`, `the key is nil`, `a limit of -1 slots`}},
		{"in flight, no store", func() (*nethttp.Guard, error) { return nethttp.InFlightIn(nil, "ws", key, 5) }, []string{`the store is nil`}},
		{"in flight, a nil store", func() (*nethttp.Guard, error) { return nethttp.InFlightIn(none, "ws", key, 5) }, []string{`the store is a nil *memstore.Store`}},
	} {
		t.Run(test.name, func(t *testing.T) {
			guard, err := test.make()
			if len(test.want) == 0 {
				if err != nil || guard == nil {
					t.Fatalf("%v, %v", guard, err)
				}
				guard.Handler(http.NotFoundHandler())
				return
			}
			if err == nil || guard != nil {
				t.Fatalf("%v, %v: want an error", guard, err)
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the error is\n%v\nwithout %q", err, want)
				}
			}
			for line := range strings.SplitSeq(err.Error(), "\n") {
				if strings.Count(line, "headgate: ") != 1 {
					t.Errorf("%q has not one prefix", line)
				}
			}
		})
	}
}

// Guards of the short form count on their own, and with a store and a name together.
func TestLimitsShareOnlyAStore(t *testing.T) {
	store, once, key := memstore.New(memstore.Config{}), core.FixedWindow(core.PerDay(1)), keyfuncs.Everyone()
	for name, make := range map[string][2]func() (*nethttp.Guard, error){
		"Limit": {
			func() (*nethttp.Guard, error) { return nethttp.Limit("api", key, once) },
			func() (*nethttp.Guard, error) { return nethttp.LimitIn(store, "api", key, once) },
		},
		"InFlight": {
			func() (*nethttp.Guard, error) { return nethttp.InFlight("ws", key, 1) },
			func() (*nethttp.Guard, error) { return nethttp.InFlightIn(store, "ws", key, 1) },
		},
	} {
		for in, wants := range [2][2]int{{0, 0}, {0, 429}} {
			for i, want := range wants {
				v := core.Must(make[in]()).Check(httptest.NewRequest("GET", "/", nil))
				defer v.End(nethttp.Outcome{})
				if v.Status() != want {
					t.Errorf("%s, with a store: %v, guard %d: %d, want %d", name, in == 1, i, v.Status(), want)
				}
			}
		}
	}
}
