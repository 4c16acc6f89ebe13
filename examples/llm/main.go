// Llm is a simulated language model with a limit on tokens. How many tokens a request costs
// is known only after the answer, so an estimate is reserved first, from the size of the
// prompt and the requested maximum of the answer, and settled to the actual cost afterwards.
//
//	go run ./examples/llm
//
// Each client address has 1000 tokens in any minute. Open http://127.0.0.1:8080/ to chat,
// or use curl:
//
//	curl -i -d 'Tell me about rate limits' 'http://127.0.0.1:8080/api/chat?max_tokens=300'
//
// reserves 309 tokens, which leaves 691, and gets
//
//	HTTP/1.1 200 OK
//	RateLimit: "tokens";r=691;t=60
//	RateLimit-Policy: "tokens";q=1000;w=60
//
//	{"answer":"You said: Tell me ...","reserved":309,"used":41}
//
// Then 959 tokens are left. A request for more than is left is refused before the model
// begins. A client that disconnects is charged for what was generated until then.
//
// GET /api/hello costs 1 token. Ctrl-C stops the server. With
// -redis redis://localhost:6379/0 the limit is shared by all servers that were started
// with the same flag.
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:8080", "listen on this `address`")
	redisURL := flag.String("redis", "", "share the limit through the Redis at this `URL`, such as redis://localhost:6379/0")
	flag.Parse()
	if flag.NArg() > 0 {
		exit(2, fmt.Errorf("unexpected argument %q", flag.Arg(0)))
	}

	store, err := newStore(*redisURL)
	if err != nil {
		exit(2, err)
	}
	handler, err := routes(store)
	if err != nil {
		exit(2, err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // so that a second Ctrl-C ends the process at once
	listener, err := net.Listen("tcp", *addr)
	if err != nil {
		exit(1, err)
	}
	greet(listener.Addr())
	if err := serve(ctx, listener, handler); err != nil {
		exit(1, err)
	}
}

// newStore returns the store of the limit: in this process, or in Redis. While Redis is
// unreachable, each server applies the limit by itself.
func newStore(url string) (core.Store, error) {
	if url == "" {
		return memstore.New(memstore.Config{}), nil
	}
	s, err := redisstore.OpenURL(url, redisstore.Config{})
	if err != nil {
		return nil, fmt.Errorf("-redis: %w", err)
	}
	return s, nil
}

// routes returns the handler of the server.
func routes(store core.Store) (http.Handler, error) {
	tokens, err := core.New(store, "tokens", core.SlidingWindow(core.PerMinute(1000)))
	if err != nil {
		return nil, err
	}
	chats, err := nethttp.New(nethttp.Config{
		Rules: []nethttp.Rule{{
			Limiter: tokens,
			Key:     keyfuncs.RemoteAddr(),
			Cost:    estimate,           // reserved before the handler runs
			Settle:  nethttp.StatedCost, // what the handler passed to SetCost
		}},
	})
	if err != nil {
		return nil, err
	}
	others, err := nethttp.New(nethttp.Config{
		Rules: []nethttp.Rule{{Limiter: tokens, Key: keyfuncs.RemoteAddr()}},
	})
	if err != nil {
		return nil, err
	}

	mux := http.NewServeMux()
	mux.Handle("POST /api/chat", chats.Handler(http.HandlerFunc(chat)))
	mux.Handle("GET /api/hello", others.Handler(http.HandlerFunc(hello)))
	mux.HandleFunc("GET /{$}", page)
	return mux, nil
}

// serve serves until ctx is done, then waits for the requests in progress.
func serve(ctx context.Context, listener net.Listener, handler http.Handler) error {
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      10 * time.Second,
		IdleTimeout:       time.Minute,
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}

	deadline, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return server.Shutdown(deadline)
}

func greet(addr net.Addr) {
	fmt.Printf(`Listening on http://%[1]v/, where a page lets you chat.
Limit: 1000 tokens in any minute for each client address.

Reserve many tokens and use few:

	curl -i -d 'Tell me about rate limits' 'http://%[1]v/api/chat?max_tokens=300'

See how many are left:

	curl -i http://%[1]v/api/hello

Use many tokens twice, of which the second request is refused:

	curl -i -d 'Tell me everything' 'http://%[1]v/api/chat?max_tokens=600&[1-2]'

Ctrl-C stops the server.
`, addr)
}

// exit prints err on one line and ends the program, with status 2 for an invalid command
// line and 1 for later errors.
func exit(status int, err error) {
	fmt.Fprintln(os.Stderr, "llm:", strings.ReplaceAll(err.Error(), "\n", "; "))
	os.Exit(status)
}
