package core_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/memstore"
)

func ExampleLimiter_Allow() {
	limiter := core.Must(core.New(memstore.New(memstore.Config{}), "login", core.SlidingLog(core.PerHour(3))))
	for range 4 {
		d, err := limiter.Allow(context.Background(), "user-42")
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

func ExampleNew_severalPolicies() {
	limiter := core.Must(core.New(memstore.New(memstore.Config{}), "search",
		core.SlidingLog(core.PerMinute(10)).Named("minute"),
		core.TokenBucket(core.Rate{Events: 2, Per: 3 * time.Second}, 2).Named("burst"),
		core.MinInterval(100*time.Millisecond).Named("pace"),
	))
	for range 2 {
		d, err := limiter.Allow(context.Background(), "user-42")
		if err != nil {
			log.Fatal(err)
		}
		for i := range d.Len() {
			a := d.Answer(i)
			fmt.Printf("%s: %d of %d left. ", a.Policy, a.Remaining, a.Limit)
		}
		fmt.Println("allowed:", d.Allowed)
	}
	// Output:
	// minute: 9 of 10 left. burst: 1 of 2 left. pace: 0 of 1 left. allowed: true
	// minute: 9 of 10 left. burst: 1 of 2 left. pace: 0 of 1 left. allowed: false
}

func ExampleNew_faults() {
	_, err := core.New(nil, "", core.FixedWindow(core.PerMinute(0)), core.TokenBucket(core.PerDay(5), -1).Named("day"))
	fmt.Println(err)
	// Output:
	// headgate: limiter "": the store is nil
	// headgate: limiter "": the name is empty
	// headgate: limiter "", policy #1: each of several policies needs a name: use Named
	// headgate: limiter "", policy #1: a rate of 0 events: to refuse everything, use Blocked
	// headgate: limiter "", policy "day": a burst must be at least 1, is -1
}

// Students behind one campus address are told apart by their sessions, and the
// address has a larger limit.
func ExampleAllowAll() {
	store := memstore.New(memstore.Config{})
	perSession := core.Must(core.New(store, "session", core.SlidingLog(core.PerMinute(2))))
	perAddress := core.Must(core.New(store, "address", core.SlidingLog(core.PerMinute(3))))
	for _, session := range []string{"ann", "ann", "ann", "ben", "cem"} {
		d, err := core.AllowAll(context.Background(),
			core.Charge{Limiter: perSession, Key: session, N: 1},
			core.Charge{Limiter: perAddress, Key: "203.0.113.7", N: 1},
		)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s: %t, by %s\n", session, d.Allowed, d.Policy)
	}
	// Output:
	// ann: true, by session
	// ann: true, by session
	// ann: false, by session
	// ben: true, by address
	// cem: false, by address
}

// The tokens of a language model are known when it has answered: reserve an
// estimate, and settle what it was.
func ExampleDecision_Settle() {
	tokens := core.Must(core.New(memstore.New(memstore.Config{}), "tokens", core.SlidingWindow(core.PerHour(10_000))))
	ctx := context.Background()
	d, err := tokens.AllowN(ctx, "user-42", 4_000)
	if err != nil || !d.Allowed {
		log.Fatal(d, err)
	}
	fmt.Println("reserved, left:", d.Remaining)

	used := int64(1_250) // the model has answered
	if _, err := d.Settle(ctx, used); err != nil {
		log.Fatal(err)
	}
	now, err := tokens.Peek(ctx, "user-42")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("settled, left:", now.Remaining)
	// Output:
	// reserved, left: 6000
	// settled, left: 8750
}

func ExampleLimiter_Wait() {
	limiter := core.Must(core.New(memstore.New(memstore.Config{}), "mails", core.MinInterval(10*time.Millisecond)))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, to := range []string{"ann", "ben"} {
		if _, err := limiter.Wait(ctx, "outbox"); err != nil {
			log.Fatal(err)
		}
		fmt.Println("mail to", to)
	}
	// Output:
	// mail to ann
	// mail to ben
}

// Plans are limiters of one name: what was used counts on when the plan changes.
func ExampleLimiter_With() {
	free := core.Must(core.New(memstore.New(memstore.Config{}), "api", core.FixedWindow(core.PerDay(3))))
	pro := core.Must(free.With(core.FixedWindow(core.PerDay(1000))))
	ctx := context.Background()
	for _, plan := range []*core.Limiter{free, free, free, free, pro} {
		d, err := plan.Allow(ctx, "user-42")
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(d.Allowed, d.Remaining, "of", d.Limit)
	}
	// Output:
	// true 2 of 3
	// true 1 of 3
	// true 0 of 3
	// false 0 of 3
	// true 996 of 1000
}

// A trial has 1000 units, which do not refill. They are remembered for ten years from the first
// request; a refund gives back what was charged in vain, and a Reset grants them anew.
func ExamplePolicy_FromFirst() {
	tenYears := 10 * 365 * 24 * time.Hour
	trial := core.Must(core.New(memstore.New(memstore.Config{}), "trial",
		core.FixedWindow(core.Rate{Events: 1000, Per: tenYears}).FromFirst()))
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

// A worker sends as many mails at once as the limit still has.
func ExampleLimiter_AllowAtMost() {
	mails := core.Must(core.New(memstore.New(memstore.Config{}), "mails", core.SlidingLog(core.PerDay(12))))
	for range 3 {
		d, units, err := mails.AllowAtMost(context.Background(), "newsletter", 10)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(units, d.Allowed)
	}
	// Output:
	// 10 true
	// 2 true
	// 0 false
}
