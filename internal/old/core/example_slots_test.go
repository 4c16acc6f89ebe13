package core_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"sync"
	"time"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/memstore"
)

func ExampleSlots() {
	slots := core.Must(core.NewSlots(memstore.New(memstore.Config{}), "sockets", 2))
	ctx := context.Background()
	for range 3 {
		slot, err := slots.Acquire(ctx, "user-42")
		switch {
		case errors.Is(err, core.ErrFull):
			fmt.Println(err)
		case err != nil:
			fmt.Println("no decision:", err)
		default:
			defer slot.Release()
			fmt.Println("acquired,", slot.Occupancies()[0].Remaining(), "left")
		}
	}
	// Output:
	// acquired, 1 left
	// acquired, 0 left
	// headgate: all slots "sockets" are taken: 2 of 2
}

// Streams of server-sent events: at most one for each user.
func ExampleSlots_Acquire_serverSentEvents() {
	slots := core.Must(core.NewSlots(memstore.New(memstore.Config{}), "events", 1))
	events := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		slot, err := slots.Acquire(r.Context(), r.URL.Query().Get("user"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusTooManyRequests)
			return
		}
		defer slot.Release()
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = fmt.Fprint(w, "data: hello\n\n")
		_ = http.NewResponseController(w).Flush()
		select {
		case <-r.Context().Done(): // the client has gone
		case <-slot.Lost(): // others were told that this server is dead
		}
	})

	server := httptest.NewServer(events)
	defer server.Close()
	for range 2 {
		response, err := http.Get(server.URL + "?user=ann")
		if err != nil {
			fmt.Println(err)
			return
		}
		defer response.Body.Close()
		fmt.Println(response.Status)
	}
	// Output:
	// 200 OK
	// 429 Too Many Requests
}

// An interceptor for streams, as gRPC has them: at most 100 for each tenant, and
// 2 for each user of a tenant.
func ExampleAcquireAll() {
	store := memstore.New(memstore.Config{})
	users := core.Must(core.NewSlots(store, "user-streams", 2))
	tenants := core.Must(core.NewSlots(store, "tenant-streams", 100))
	type handler func(ctx context.Context) error
	intercept := func(ctx context.Context, tenant, user string, stream handler) error {
		slot, err := core.AcquireAll(ctx, core.Claim{Slots: users, Key: tenant + "/" + user}, core.Claim{Slots: tenants, Key: tenant})
		if err != nil {
			return err // codes.ResourceExhausted if it is core.ErrFull
		}
		defer slot.Release()
		return stream(ctx)
	}

	err := intercept(context.Background(), "acme", "ann", func(ctx context.Context) error {
		n, err := tenants.Count(ctx, "acme")
		fmt.Println("streams of the tenant:", n)
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output: streams of the tenant: 1
}

// Jobs: each customer's run one at a time, however many workers there are.
func ExampleSlots_Acquire_jobs() {
	slots, err := core.NewSlotsFunc(memstore.New(memstore.Config{}), "jobs", func(customer string) int64 {
		if customer == "acme" {
			return 10
		}
		return 1
	})
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	var workers sync.WaitGroup
	for range 8 {
		slot, err := slots.Acquire(ctx, "acme")
		if errors.Is(err, core.ErrFull) {
			continue // leave the job in the queue
		} else if err != nil {
			log.Fatal(err)
		}
		workers.Go(func() {
			defer slot.Release()
			// run the job
		})
	}
	workers.Wait()
	n, err := slots.Count(ctx, "acme")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("still running:", n)
	// Output: still running: 0
}

// Exports: two at once for each customer. A third waits for up to a minute, and so may four
// more; who comes then is told at once.
func ExampleSlots_AcquireWait() {
	slots := core.Must(core.NewSlots(memstore.New(memstore.Config{}), "exports", 2))
	export := func(ctx context.Context, customer string) error {
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		slot, err := slots.AcquireWait(ctx, customer, 5)
		if err != nil {
			return err // core.ErrFull: too many wait, or the minute is over
		}
		defer slot.Release()
		fmt.Println("exporting for", customer)
		return nil
	}
	if err := export(context.Background(), "acme"); err != nil {
		log.Fatal(err)
	}
	// Output: exporting for acme
}
