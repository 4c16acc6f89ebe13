package core_test

import (
	"context"
	"fmt"
	"log"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/memstore"
)

// A worker takes jobs of a customer while it has a second left, and counts how long they took.
func ExampleLimiter_Report() {
	seconds := core.Must(core.New(memstore.New(memstore.Config{}), "seconds", core.TokenBucket(core.PerHour(600), 600)))
	ctx := context.Background()
	for _, took := range []int64{500, 400, 1} {
		d, err := seconds.Peek(ctx, "customer-7")
		if err != nil {
			log.Fatal(err)
		}
		if !d.Allowed {
			fmt.Println("refused for", d.RetryAfter.Round(1e9))
			continue
		}
		d, uncovered, err := seconds.Report(ctx, "customer-7", took)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(d.Remaining, "left,", uncovered, "beyond the limit")
	}
	// Output:
	// 100 left, 0 beyond the limit
	// 0 left, 300 beyond the limit
	// refused for 30m6s
}
