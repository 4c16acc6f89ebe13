package nethttp_test

import (
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

func TestInFlightReportsWhatIsWrong(t *testing.T) {
	key := keyfuncs.RemoteAddr()
	var none *memstore.Store
	for _, test := range []struct {
		name string
		make func() (*nethttp.Guard, error)
		want []string // in the error; none: there is no error
	}{
		{"fine", func() (*nethttp.Guard, error) { return nethttp.InFlight("ws", key, 5) }, nil},
		{"none at all", func() (*nethttp.Guard, error) { return nethttp.InFlight("ws", key, 0) }, nil},
		{"no limit", func() (*nethttp.Guard, error) { return nethttp.InFlight("ws", key, core.NoLimit) }, nil},
		{"no name", func() (*nethttp.Guard, error) { return nethttp.InFlight("", key, 5) }, []string{`slots "": the name is empty`}},
		{"a name that no field can show", func() (*nethttp.Guard, error) { return nethttp.InFlight("größe", key, 5) }, []string{`only printable ASCII`}},
		{"no key", func() (*nethttp.Guard, error) { return nethttp.InFlight("ws", nil, 5) }, []string{`limit "ws": the key is nil: say whose`}},
		{"a negative limit", func() (*nethttp.Guard, error) { return nethttp.InFlight("ws", key, -1) }, []string{`a limit of -1 slots`}},
		{"a huge limit", func() (*nethttp.Guard, error) { return nethttp.InFlight("ws", key, math.MaxInt64) }, []string{`slots is not 0 to`}},
		{"everything", func() (*nethttp.Guard, error) { return nethttp.InFlight("", nil, -1) }, []string{`the name is empty`, `the key is nil`, `a limit of -1 slots`}},
		{"no store", func() (*nethttp.Guard, error) { return nethttp.InFlightIn(nil, "ws", key, 5) }, []string{`the store is nil`}},
		{"a nil store", func() (*nethttp.Guard, error) { return nethttp.InFlightIn(none, "ws", key, 5) }, []string{`the store is a nil *memstore.Store`}},
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
func TestInFlightSharesOnlyAStore(t *testing.T) {
	store, key := memstore.New(memstore.Config{}), keyfuncs.Everyone()
	check := func(g *nethttp.Guard) int {
		v := g.Check(httptest.NewRequest("GET", "/", nil))
		t.Cleanup(func() { v.End(nethttp.Outcome{}) })
		return v.Status()
	}
	for i, want := range []int{0, 0} {
		if got := check(core.Must(nethttp.InFlight("ws", key, 1))); got != want {
			t.Errorf("guard %d: %d, want %d", i, got, want)
		}
	}
	for i, want := range []int{0, 429} {
		if got := check(core.Must(nethttp.InFlightIn(store, "ws", key, 1))); got != want {
			t.Errorf("guard %d with a store: %d, want %d", i, got, want)
		}
	}
}
