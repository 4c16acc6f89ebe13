// Llm is a simulated language model with two limits on tokens, beside each other. How many tokens
// an answer takes is known only when it has been sent.
//
//	go run ./examples/llm
//
// Each client address has 1000 tokens an hour under either limit. Open http://127.0.0.1:8080/ to
// watch both, or use curl:
//
//	curl -i -d 'Tell me everything' 'http://127.0.0.1:8080/api/estimated?max_tokens=300'
//
// reserves 306 tokens before it begins: 6 for the prompt, and 300 for the longest answer. Unused
// tokens are given back at the end. A request for more tokens than are left is refused before the
// model begins, so no limit is exceeded, however many requests run at once.
//
//	curl -i -d 'Tell me everything' http://127.0.0.1:8080/api/reported
//
// needs one token to begin. The answer has no maximum, and takes 5006 tokens, which count when it has
// ended. From then on the address is refused for four hours, until the debt is repaid:
//
//	HTTP/1.1 429 Too Many Requests
//	RateLimit: "reported";r=0;t=14426
//	Retry-After: 14426
//
// But as many of these as run at once are all admitted. A client that disconnects pays for the
// tokens generated until then.
//
// GET /api/now says how many tokens are left, and costs nothing. POST /api/reset forgets the used
// tokens. Ctrl-C stops the server. With -redis redis://localhost:6379/0 the limits are shared by
// all servers that were started with the same flag. -pace is the time between two tokens.
package main

import (
	"context"
	"errors"
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
	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:8080", "listen on this `address`")
	redisURL := flag.String("redis", "", "share the limits through the Redis at this `URL`, such as redis://localhost:6379/0")
	pace := flag.Duration("pace", time.Millisecond, "the `time` between two tokens")
	flag.Parse()
	if flag.NArg() > 0 {
		exit(2, fmt.Errorf("unexpected argument %q", flag.Arg(0)))
	}

	store, err := newStore(*redisURL)
	if err != nil {
		exit(2, err)
	}
	handler, err := routes(store, *pace)
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

// newStore returns the store of the limits: in this process, or in Redis. While Redis is
// unreachable, each server applies the limits by itself.
func newStore(url string) (core.Store, error) {
	if url == "" {
		return new(core.MemoryStore), nil
	}
	s, err := redisstore.Open(url, redisstore.Config{})
	if err != nil {
		return nil, fmt.Errorf("-redis: %w", err)
	}
	return s, nil
}

const (
	limit = 1000   // tokens an hour
	debt  = 20_000 // tokens that may be used beyond it
)

// routes returns the handler of the server.
func routes(store core.Store, pace time.Duration) (http.Handler, error) {
	tokens := core.TokenBucket(limit, time.Hour).Debt(debt)
	estimated, reported := core.NewLimiter(store, "estimated", tokens), core.NewLimiter(store, "reported", tokens)
	address := keyfuncs.RemoteAddr()
	estimating, errEstimating := nethttp.New(nethttp.Config{Rates: []nethttp.Rate{{
		Limiter: estimated,
		Key:     address,
		Cost:    estimate, // reserved before the handler runs, which then tells SetCost what it was
	}}})
	reporting, errReporting := nethttp.New(nethttp.Config{Rates: []nethttp.Rate{{
		Limiter: reported,
		Key:     address,
		Settle:  func(_ *http.Request, o nethttp.Outcome) int64 { return o.Cost }, // one to get in, and then what SetCost was told
	}}})
	if err := errors.Join(errEstimating, errReporting); err != nil {
		return nil, err
	}

	mux := http.NewServeMux()
	mux.Handle("POST /api/estimated", estimating.Handler(chat{estimated, answerTokens, pace}))
	mux.Handle("POST /api/reported", reporting.Handler(chat{reported, nil, pace}))
	mux.Handle("GET /api/now", now{estimated, reported})
	mux.HandleFunc("POST /api/reset", func(w http.ResponseWriter, r *http.Request) {
		key, err := address(r)
		if err == nil {
			err = errors.Join(estimated.Reset(r.Context(), key), reported.Reset(r.Context(), key))
		}
		if err != nil {
			http.Error(w, "503 the limits are not available", http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("GET /{$}", page)
	return http.NewCrossOriginProtection().Handler(mux), nil
}

// serve serves until ctx is done, then waits for the requests in progress.
func serve(ctx context.Context, listener net.Listener, handler http.Handler) error {
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      5 * time.Minute, // of an answer
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
	fmt.Printf(`Listening on http://%[1]v/, where a page shows both limits.
Limits: 1000 tokens an hour for each client address, beside each other.

Reserve what an answer can take at most, and give back what it did not take:

	curl -i -d 'Tell me everything' 'http://%[1]v/api/estimated?max_tokens=300'

Take 5000 tokens, which count afterwards, and then be refused for four hours:

	curl -i -d 'Tell me everything' 'http://%[1]v/api/reported?[1-2]'

See what is left:

	curl -i http://%[1]v/api/now

Ctrl-C stops the server.
`, addr)
}

// exit prints err on one line and ends the program, with status 2 for an invalid command
// line and 1 for later errors.
func exit(status int, err error) {
	fmt.Fprintln(os.Stderr, "llm:", strings.ReplaceAll(err.Error(), "\n", "; "))
	os.Exit(status)
}
