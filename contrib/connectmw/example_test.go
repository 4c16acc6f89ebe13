package connectmw_test

import (
	"net/http"

	"connectrpc.com/connect"

	"github.com/headgate/headgate/contrib/connectmw"
	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
)

func Example() {
	calls := core.Must(core.New(memstore.New(memstore.Config{}), "calls", core.TokenBucket(core.PerSecond(10), 20)))
	guard := core.Must(connectmw.New(connectmw.Config{Rules: []connectmw.Rule{
		{Key: connectmw.Metadata("X-User"), Limiter: calls}, // which authentication has checked
	}}))
	mux := http.NewServeMux()
	mux.Handle(unary, connect.NewUnaryHandler(unary, do, connect.WithInterceptors(guard)))
	_ = http.Server{Handler: connectmw.Requests(mux)}
}
