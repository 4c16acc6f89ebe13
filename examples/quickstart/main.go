// Quickstart is a server with one limit: so many requests to /api/hello in any
// window of time, for each client address.
//
//	go run ./examples/quickstart
//
// Open http://127.0.0.1:8080/ to see the limit at work, or use curl:
//
//	curl -i http://127.0.0.1:8080/api/hello
//
// The first ten requests in ten seconds are admitted. The next is refused, and
// told when to come back:
//
//	HTTP/1.1 429 Too Many Requests
//	Cache-Control: no-store
//	Content-Type: application/problem+json
//	RateLimit: "hello";r=0;t=8
//	RateLimit-Policy: "hello";q=10;w=10
//	Retry-After: 8
//
// Other numbers: -limit 3 -window 1m. Ctrl-C stops the server.
//
// With -redis redis://localhost:6379/0 the limit is shared by all servers that were
// started with the same flag.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:8080", "listen on this `address`")
	limit := flag.Int64("limit", 10, "admit `n` requests of a client address in any window")
	window := flag.Duration("window", 10*time.Second, "the `length` of the window")
	redisURL := flag.String("redis", "", "share the limit through the Redis at this `URL`, as redis://localhost:6379/0")
	flag.Parse()
	if flag.NArg() > 0 {
		exit(2, fmt.Errorf("unexpected argument %q", flag.Arg(0)))
	}

	store, err := newStore(*redisURL)
	if err != nil {
		exit(2, err)
	}
	handler, err := routes(store, *limit, *window)
	if err != nil {
		exit(2, err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // so that a second Ctrl-C ends the process at once
	listener, err := net.Listen("tcp", *addr)
	if err != nil {
		exit(1, err)
	}
	greet(listener.Addr(), *limit, *window)
	if err := serve(ctx, listener, handler); err != nil {
		exit(1, err)
	}
}

// newStore makes the store that the limit is kept in: this process, or Redis. While
// Redis is away, each server keeps the limit by itself.
func newStore(url string) (core.Store, error) {
	if url == "" {
		return memstore.New(memstore.Config{}), nil
	}
	options, err := redis.ParseURL(url)
	if err != nil {
		return nil, fmt.Errorf("-redis: %w", err)
	}
	options.ContextTimeoutEnabled = true // so that no request waits for a Redis that does not answer
	return redisstore.New(redis.NewClient(options), redisstore.Config{})
}

// routes makes the handler of the whole server. This is all there is to a limit:
// a limiter, a guard that asks it, and the handler behind the guard.
func routes(store core.Store, limit int64, window time.Duration) (http.Handler, error) {
	limiter, err := core.New(store, "hello", core.SlidingLog(core.Rate{Events: limit, Per: window}))
	if err != nil {
		return nil, err
	}
	guard, err := nethttp.New(nethttp.Config{
		Rules: []nethttp.Rule{{Limiter: limiter, Key: keyfuncs.RemoteAddr()}},
	})
	if err != nil {
		return nil, err
	}

	mux := http.NewServeMux()
	mux.Handle("GET /api/hello", guard.Handler(http.HandlerFunc(hello)))
	mux.Handle("GET /{$}", page(limit, window))
	return mux, nil
}

func hello(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	io.WriteString(w, "hello\n")
}

// serve answers requests until ctx ends, and then lets those that are under way
// finish.
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

func greet(addr net.Addr, limit int64, window time.Duration) {
	fmt.Printf(`Listening on http://%[1]v/, where a page shows the limit at work.
Limit on /api/hello: %[2]d in any %[3]v, for each client address.

One request, with all fields of the response:

	curl -i http://%[1]v/api/hello

%[4]d requests; the last is refused:

	curl -s -o /dev/null -w '%%{http_code}\n' 'http://%[1]v/api/hello?[1-%[4]d]'

Ctrl-C stops the server.
`, addr, limit, window, limit+1)
}

// exit ends the program with err on one line: status 2 for what is wrong with the
// command line, 1 for what went wrong afterwards.
func exit(status int, err error) {
	fmt.Fprintln(os.Stderr, "quickstart:", strings.ReplaceAll(err.Error(), "\n", "; "))
	os.Exit(status)
}
