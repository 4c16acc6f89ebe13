// Quickstart is a server with two limits for each client address. One is on requests to /api/hello
// in any window of time. The other is on WebSockets open on /ws at once.
//
//	go run ./examples/quickstart
//
// Open http://127.0.0.1:8080/ to see the limits at work, or use curl:
//
//	curl -i http://127.0.0.1:8080/api/hello
//
// The first ten requests in ten seconds are admitted. The next is refused, with the time
// until it may be sent again:
//
//	HTTP/1.1 429 Too Many Requests
//	Cache-Control: no-store
//	Content-Length: 141
//	Content-Type: application/problem+json
//	Ratelimit: "hello";r=0;t=8
//	Ratelimit-Policy: "hello";q=10;w=10
//	Retry-After: 8
//	X-Content-Type-Options: nosniff
//
// Flags change the numbers, such as -limit 3 -window 1m -sockets 5. Ctrl-C stops the
// server.
//
// With -redis redis://localhost:6379/0, all servers started with the same flag share the
// limits.
//
// With -limits examples/quickstart/limits.yaml, the limit of requests comes from the document. Change the
// number in it and save it: within a second the new limit applies, and the page shows it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gorilla/websocket"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/limits"
	"github.com/headgate/headgate/nethttp"
	"github.com/headgate/headgate/websocketmw"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:8080", "listen on this `address`")
	limit := flag.Int64("limit", 10, "admit `n` requests from a client address in any window")
	window := flag.Duration("window", 10*time.Second, "`length` of the window")
	sockets := flag.Int64("sockets", 3, "allow `n` sockets open at once for a client address")
	file := flag.String("limits", "", "the limit of requests is that of this `file`, and changes with it, instead of -limit and -window")
	redisURL := flag.String("redis", "", "share the limits through the Redis at this `URL`, such as redis://localhost:6379/0")
	flag.Parse()
	if flag.NArg() > 0 {
		exit(2, fmt.Errorf("unexpected argument %q", flag.Arg(0)))
	}

	if *sockets < 0 {
		exit(2, errors.New("-sockets must not be negative"))
	}
	store, err := newStore(*redisURL)
	if err != nil {
		exit(2, err)
	}
	var limiter *core.Limiter
	if *file == "" {
		limiter, err = newLimiter(store, *limit, *window)
	} else {
		limiter, err = openLimiter(store, limits.File(*file))
	}
	if err != nil {
		exit(2, err)
	}
	app := newApp(store, limiter, *sockets)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // so that a second Ctrl-C ends the process at once
	listener, err := net.Listen("tcp", *addr)
	if err != nil {
		exit(1, err)
	}
	greet(listener.Addr(), app.numbers(ctx, "127.0.0.1"))
	if err := app.serve(ctx, listener); err != nil {
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
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := s.Check(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "quickstart: Redis cannot be used (%v): until it can, each server counts by itself\n", err)
	}
	return s, nil
}

// newLimiter returns a limiter of a number.
func newLimiter(store core.Store, limit int64, window time.Duration) (*core.Limiter, error) {
	policy := core.SlidingLog(limit, window)
	if err := policy.Validate(); err != nil { // a flag is data: NewLimiter would panic
		return nil, err
	}
	return core.NewLimiter(store, "hello", policy), nil
}

// openLimiter returns a limiter of a document, which must have a limit hello. Nothing else differs.
func openLimiter(store core.Store, source limits.Source) (*core.Limiter, error) {
	book, err := limits.Open(context.Background(), store, source, limits.Config{
		OnChange: func(s limits.State) {
			if s.Err != nil {
				fmt.Fprintf(os.Stderr, "quickstart: the limits stay as they are: %v\n", s.Err)
			}
			for _, change := range s.Changes { // none at the start
				fmt.Fprintln(os.Stderr, change)
			}
		},
	})
	if err != nil {
		return nil, err
	}
	return book.Limiter("hello")
}

// An app is the whole server.
type app struct {
	http.Handler

	limiter *core.Limiter
	open    int64 // sockets that a key may have open
	sockets *websocketmw.Guard
}

// newApp returns the app. It shows all that a limit needs: a limiter or slots, a guard
// that uses it, and the handler behind the guard.
func newApp(store core.Store, limiter *core.Limiter, open int64) *app {
	address := keyfuncs.RemoteAddr()
	requests, err := nethttp.New(nethttp.Config{Rates: []nethttp.Rate{{Limiter: limiter, Key: address}}})
	if err != nil {
		panic(err) // it is the same for all flags
	}
	a := &app{limiter: limiter, open: open, sockets: websocketmw.MaxOpen(store, "sockets", address, open)}

	mux := http.NewServeMux()
	mux.Handle("GET /api/hello", requests.Handler(http.HandlerFunc(hello)))
	mux.Handle("GET /ws", a.sockets.Handler(http.HandlerFunc(greetings)))
	mux.HandleFunc("GET /{$}", a.page)
	mux.HandleFunc("GET /limits", a.serveNumbers)
	a.Handler = mux
	return a
}

func hello(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	io.WriteString(w, "hello\n")
}

// greetings sends hello, and again after each message that it receives.
func greetings(w http.ResponseWriter, r *http.Request) {
	conn, err := (&websocket.Upgrader{}).Upgrade(w, r, nil)
	if err != nil {
		return // Upgrade has answered
	}
	defer conn.Close()
	for {
		if err := conn.WriteMessage(websocket.TextMessage, []byte("hello")); err != nil {
			return
		}
		if _, _, err := conn.NextReader(); err != nil {
			return
		}
	}
}

// serve serves until ctx is done, then closes the sockets and waits for the requests in
// progress.
func (a *app) serve(ctx context.Context, listener net.Listener) error {
	server := &http.Server{
		Handler:           a,
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
	return errors.Join(a.sockets.Shutdown(deadline), server.Shutdown(deadline))
}

func greet(addr net.Addr, n numbers) {
	fmt.Printf(`Listening on http://%[1]v/, where a page shows the limits at work.
Limits for each client address: %[2]d requests to /api/hello in any %[3]v, and %[5]d sockets on /ws.

Send one request and see all fields of the response:

	curl -i http://%[1]v/api/hello

Send %[4]d requests, of which those over the limit are refused:

	curl -s -o /dev/null -w '%%{http_code}\n' 'http://%[1]v/api/hello?[1-%[4]d]'

To open sockets, press "Open one" on the page. Ctrl-C stops the server.
`, reachable(addr), n.limit, n.window, n.limit+1, n.sockets)
}

// reachable returns an address where this machine reaches a server that listens on addr, such
// as 127.0.0.1:8080 for one that listens on all addresses.
func reachable(addr net.Addr) string {
	if tcp, ok := addr.(*net.TCPAddr); ok && tcp.IP.IsUnspecified() {
		return net.JoinHostPort("127.0.0.1", strconv.Itoa(tcp.Port))
	}
	return addr.String()
}

// exit prints err on one line and ends the program, with status 2 for an invalid command
// line and 1 for later errors.
func exit(status int, err error) {
	fmt.Fprintln(os.Stderr, "quickstart:", strings.ReplaceAll(err.Error(), "\n", "; "))
	os.Exit(status)
}
