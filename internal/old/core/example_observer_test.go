package core_test

import (
	"context"
	"expvar"
	"fmt"
	"log"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/memstore"
)

// Decisions counted by limiter, outcome and source.
func ExampleObserver() {
	decisions := new(expvar.Map) // or a counter with three labels
	store := memstore.New(memstore.Config{Observer: &core.Observer{
		Decided: func(_ context.Context, e core.DecisionEvent) {
			outcome := "refused"
			switch {
			case e.Err != nil:
				outcome = "failed"
			case e.Allowed:
				outcome = "admitted"
			}
			decisions.Add(fmt.Sprintf("%s %s by %v", e.Limiter, outcome, e.Source), 1)
		},
	}})
	api := core.Must(core.New(store, "api", core.SlidingLog(core.PerMinute(2))))
	banned := core.Must(core.New(store, "banned", core.Blocked()))
	for _, limiter := range []*core.Limiter{api, api, api, banned} {
		if _, err := limiter.Allow(context.Background(), "user-42"); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println(decisions)
	// Output: {"api admitted by store": 2, "api refused by store": 1, "banned refused by policy": 1}
}
