package conformance

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/headgate/headgate/contrib/rpc"
	"github.com/headgate/headgate/core"
)

// notOfCalls are the scenarios that remote calls cannot have, and why.
var notOfCalls = map[string]string{
	"every method":             "all calls have the method POST",
	"HEAD":                     "all calls have the method POST",
	"a body that nobody needs": "a message is read before the guard sees it",
	"preflights":               "no call is a preflight",
	"OnRefused":                "a status has no body: there is no OnRefused",
	"KeepVerdict":              "there is no KeepVerdict",
	"settling by status":       "handlers of calls return codes, and write no bytes: see TestSettle of grpcmw",
	"settling bytes":           "handlers of calls return codes, and write no bytes: see TestSettleAfterwards of grpcmw",
}

// Remote calls are decided as requests: their codes have the same status, their metadata the same
// fields, and the program sees the same. Packages grpcmw and connectmw translate only this.
func TestScenariosOfCalls(t *testing.T) {
	seen := 0
	for _, s := range scenarios {
		if notOfCalls[s.name] != "" {
			seen++
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				answers, events := call(t, s)
				if !slices.Equal(events, s.events) {
					t.Errorf("events\n%q, want\n%q", events, s.events)
				}
				for i, a := range answers {
					if a.line() != s.want[i] {
						t.Errorf("call %d: %s, want %s", i, a.line(), s.want[i])
					}
				}
			})
		})
	}
	if seen != len(notOfCalls) {
		t.Errorf("%d of %d scenarios that calls cannot have are there", seen, len(notOfCalls))
	}
}

// call returns what became of a scenario whose requests are calls.
func call(t *testing.T, s scenario) (answers []answer, events []string) {
	w := &world{t: t, store: new(core.MemoryStore)}
	c, handler := s.setup(w)
	if c.OnRefused != nil {
		t.Fatal("guards of calls are not configured like that")
	}
	if handler == nil {
		handler = func(http.ResponseWriter, *http.Request) { w.note("hello") }
	}
	guard, err := rpc.New(rpc.Config{
		Rates: c.Rates, Concurrency: c.Concurrency, Skip: c.Skip, Fields: c.Fields, Observe: c.Observe, Logger: c.Logger,
	}, func(error) rpc.Code { return rpc.OK })
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range s.requests {
		answers = append(answers, enter(t, guard, r, handler))
	}
	return answers, w.events
}

// enter makes a call.
func enter(t *testing.T, guard *rpc.Guard, r *http.Request, handler http.HandlerFunc) (a answer) {
	defer func() {
		if p := recover(); p != nil {
			a.Panic = fmt.Sprint(p)
		}
	}()
	f := guard.Serve(t.Context(), &rpc.Call{Procedure: r.URL.Path, Header: r.Header, RemoteAddr: r.RemoteAddr}, func(v *rpc.Visit) (any, error) {
		a = answer{Status: 200, Fields: v.Fields}
		handler(httptest.NewRecorder(), r.WithContext(v.Context))
		return nil, nil
	})
	if f != nil {
		return answer{Status: statuses[f.Code], Fields: f.Fields}
	}
	return a
}

// statuses are those of HTTP that codes of refusals stand for.
var statuses = map[rpc.Code]int{rpc.InvalidArgument: 400, rpc.ResourceExhausted: 429, rpc.Internal: 500, rpc.Unavailable: 503}
