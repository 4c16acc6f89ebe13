package limits_test

import (
	"context"
	"log"
	"net/http"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/limits"
	"github.com/headgate/headgate/nethttp"
)

// The limits of a file, which may change while the program runs.
func ExampleOpen() {
	type userKey struct{} // authentication puts both into the request's context
	type planKey struct{}

	book, err := limits.Open(context.Background(), new(core.MemoryStore), limits.File("limits.yaml"), limits.Config{
		OnChange: func(s limits.State) { log.Println("limits", s.Version, s.Changes, s.Err) },
	})
	if err != nil {
		log.Fatal(err)
	}
	defer book.Close()
	api, err := book.Limiter("api") // a *core.Limiter as any other
	if err != nil {
		log.Fatal(err)
	}
	guard, err := nethttp.New(nethttp.Config{Rates: []nethttp.Rate{
		{Limiter: api, Key: keyfuncs.Context(userKey{}), Plan: keyfuncs.Context(planKey{})},
	}})
	if err != nil {
		log.Fatal(err)
	}
	http.Handle("/api/", guard.Handler(http.FileServer(http.Dir("."))))
}
