package connectmw_test

import (
	"log"
	"net/http"
	"time"

	"connectrpc.com/connect"

	"github.com/headgate/headgate/contrib/connectmw"
	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/nethttp"
)

func Example() {
	guard, err := connectmw.New(connectmw.Config{Rates: []nethttp.Rate{{
		Limiter: core.NewLimiter(new(core.MemoryStore), "calls", core.TokenBucket(10, time.Second).Burst(20)),
		Key:     connectmw.Metadata("X-User"), // which authentication has checked
	}}})
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle(unary, connect.NewUnaryHandler(unary, do, connect.WithInterceptors(guard)))
	_ = http.Server{Handler: connectmw.Requests(mux)}
}
