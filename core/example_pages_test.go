package core_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"strconv"
	"time"

	"github.com/headgate/headgate/core"
)

func ExampleLimiter_Allow() {
	logins := core.NewLimiter(new(core.MemoryStore), "login", core.SlidingLog(3, time.Hour))
	for range 4 {
		d, err := logins.Allow(context.Background(), "user-42")
		switch {
		case err != nil:
			fmt.Println("no decision:", err)
		case d.Allowed:
			fmt.Println("admitted,", d.Remaining, "left")
		default:
			fmt.Println("refused, retry in", d.RetryAfter.Round(time.Hour))
		}
	}
	// Output:
	// admitted, 2 left
	// admitted, 1 left
	// admitted, 0 left
	// refused, retry in 1h0m0s
}

// Several policies on one key, charged together or not at all.
func ExampleNewLimiter_severalPolicies() {
	limiter := core.NewLimiter(new(core.MemoryStore), "search",
		core.SlidingLog(10, time.Minute).Named("minute"),
		core.TokenBucket(2, 3*time.Second).Named("burst"),
		core.MinInterval(100*time.Millisecond).Named("pace"),
	)
	for range 2 {
		d, err := limiter.Allow(context.Background(), "user-42")
		if err != nil {
			log.Fatal(err)
		}
		for a := range d.Answers() {
			fmt.Printf("%s: %d of %d left. ", a.Policy, a.Remaining, a.Limit)
		}
		fmt.Println("allowed:", d.Allowed)
	}
	// Output:
	// minute: 9 of 10 left. burst: 1 of 2 left. pace: 0 of 1 left. allowed: true
	// minute: 9 of 10 left. burst: 1 of 2 left. pace: 0 of 1 left. allowed: false
}

// Credits that do not refill are a window of years that begins with the first request.
func ExamplePolicy_FromFirst() {
	const tenYears = 10 * 365 * 24 * time.Hour
	trial := core.NewLimiter(new(core.MemoryStore), "trial", core.FixedWindow(1000, tenYears).FromFirst())
	ctx := context.Background()
	for _, units := range []int64{600, 600, 400} {
		d, err := trial.AllowN(ctx, "user-42", units)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(d.Allowed, d.Remaining)
	}
	if err := trial.Reset(ctx, "user-42"); err != nil {
		log.Fatal(err)
	}
	d, err := trial.Peek(ctx, "user-42")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(d.Remaining)
	// Output:
	// true 400
	// false 400
	// true 0
	// 1000
}

// Each customer has 1,000 calls a month, from the day on which they are billed: the plan is that day.
func ExamplePolicy_Starting() {
	quota := core.NewLimiter(new(core.MemoryStore), "quota", core.Calendar(1000, core.Month))
	for day := 1; day <= 31; day++ {
		quota = quota.WithPlan(strconv.Itoa(day), core.Calendar(1000, core.Month).Starting(day))
	}

	billingDay := "15" // of this customer
	d, err := quota.Plan(billingDay).Allow(context.Background(), "customer-7")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(d.Allowed, d.Remaining)
	// Output: true 999
}

// Policies of a configuration file.
func ExamplePolicy_UnmarshalText() {
	document := `{"search": "token-bucket 10/second burst 100", "login": "sliding-log 5/minute count-denied"}`
	var limits struct {
		Search core.Policy `json:"search"`
		Login  core.Policy `json:"login"`
	}
	if err := json.Unmarshal([]byte(document), &limits); err != nil {
		log.Fatal(err) // the policy, and what is wrong
	}
	if err := errors.Join(limits.Search.Validate(), limits.Login.Validate()); err != nil {
		log.Fatal(err) // of a policy that the document lacks, too
	}
	search := core.NewLimiter(new(core.MemoryStore), "search", limits.Search)
	fmt.Println(search.Name(), limits.Search, limits.Login)
	// Output: search token-bucket 10/second burst 100 sliding-log 5/minute count-denied
}

// Work whose cost nobody knows before it is done.
func ExampleLimiter_Report() {
	seconds := core.NewLimiter(new(core.MemoryStore), "seconds", core.TokenBucket(600, time.Hour))
	ctx := context.Background()
	for _, took := range []int64{500, 400, 1} {
		d, err := seconds.Peek(ctx, "customer-7")
		if err != nil {
			log.Fatal(err)
		}
		if !d.Allowed {
			fmt.Println("refused for", d.RetryAfter.Round(time.Second))
			continue
		}
		d, err = seconds.Report(ctx, "customer-7", took)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(d.Remaining, "left,", d.Uncovered, "beyond the limit")
	}
	// Output:
	// 100 left, 0 beyond the limit
	// 0 left, 300 beyond the limit
	// refused for 30m6s
}

// At most two things of a key are held at once.
func ExampleSlots() {
	sockets := core.NewSlots(new(core.MemoryStore), "sockets", 2)
	ctx := context.Background()
	for range 3 {
		slot, err := sockets.Acquire(ctx, "user-42")
		switch {
		case errors.Is(err, core.ErrFull):
			fmt.Println("refused")
		case err != nil:
			fmt.Println("no decision:", err)
		default:
			defer slot.Release()
			fmt.Println("acquired")
		}
	}
	// Output:
	// acquired
	// acquired
	// refused
}
