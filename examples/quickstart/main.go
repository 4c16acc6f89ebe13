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
// With -limits examples/quickstart/limits.yaml, the limits come from the document. Change a number
// in it and save it: within a second the new limit applies, and the page shows it.
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
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/limits"
	"github.com/headgate/headgate/limits/yamldoc"
	"github.com/headgate/headgate/nethttp"
	"github.com/headgate/headgate/websocketmw"
	"github.com/headgate/headgate/websocketmw/gorillaws"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:8080", "listen on this `address`")
	limit := flag.Int64("limit", 10, "admit `n` requests from a client address in any window")
	window := flag.Duration("window", 10*time.Second, "`length` of the window")
	sockets := flag.Int64("sockets", 3, "allow `n` sockets open at once for a client address")
	file := flag.String("limits", "", "the limits are those of this `file`, and change with it, instead of -limit, -window and -sockets")
	redisURL := flag.String("redis", "", "share the limits through the Redis at this `URL`, such as redis://localhost:6379/0")
	flag.Parse()
	if flag.NArg() > 0 {
		exit(2, fmt.Errorf("unexpected argument %q", flag.Arg(0)))
	}

	store, err := newStore(*redisURL)
	if err != nil {
		exit(2, err)
	}
	var app *app
	if *file == "" {
		app, err = newApp(store, *limit, *window, *sockets)
	} else {
		app, err = newAppFrom(store, limits.File(*file))
	}
	if err != nil {
		exit(2, err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // so that a second Ctrl-C ends the process at once
	listener, err := net.Listen("tcp", *addr)
	if err != nil {
		exit(1, err)
	}
	greet(listener.Addr(), app.numbers(""))
	if err := app.serve(ctx, listener); err != nil {
		exit(1, err)
	}
}

// newStore returns the store of the limits: in this process, or in Redis. While Redis is
// unreachable, each server applies the limits by itself.
func newStore(url string) (core.FullStore, error) {
	if url == "" {
		return memstore.New(memstore.Config{}), nil
	}
	s, err := redisstore.OpenURL(url, redisstore.Config{})
	if err != nil {
		return nil, fmt.Errorf("-redis: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if report, err := s.Check(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "quickstart: Redis is unreachable (%v): until it returns, each server counts by itself\n", err)
	} else if len(report.Problems) > 0 {
		fmt.Fprint(os.Stderr, report)
	}
	return s, nil
}

// An app is the whole server.
type app struct {
	http.Handler

	sockets *websocketmw.Guard
	numbers func(key string) numbers
}

// numbers are those of the limits for a key, for the page.
type numbers struct {
	limit   int64
	window  time.Duration
	sockets int64
}

// newApp returns the app. It shows all that a limit needs: a limiter or slots, a guard
// that uses it, and the handler behind the guard.
func newApp(store core.FullStore, limit int64, window time.Duration, sockets int64) (*app, error) {
	limiter, err := core.New(store, "hello", core.SlidingLog(core.Rate{Events: limit, Per: window}))
	if err != nil {
		return nil, err
	}
	slots, err := core.NewSlots(store, "sockets", sockets)
	if err != nil {
		return nil, err
	}
	return assemble(
		nethttp.Rule{Limiter: limiter, Key: keyfuncs.RemoteAddr()},
		nethttp.Rule{Slots: slots, Key: keyfuncs.RemoteAddr()},
		func(string) numbers { return numbers{limit, window, sockets} })
}

// newAppFrom returns the app with the limits of a document, which must have a limit hello and
// slots sockets. Nothing but the rules differs.
func newAppFrom(store core.FullStore, source limits.Source) (*app, error) {
	book, err := limits.Open(context.Background(), store, store, source, limits.Config{
		Decode: yamldoc.Decode,
		Changed: func(e limits.Event) {
			if e.State.Err != nil {
				fmt.Fprintf(os.Stderr, "quickstart: the limits stay as they are: %v\n", e.State.Err)
				return
			}
			fmt.Fprint(os.Stderr, e.Diff) // empty at the start
		},
	})
	if err != nil {
		return nil, err
	}
	limit, err := book.Limit("hello")
	if err != nil {
		return nil, err
	}
	sockets, err := book.Slots("sockets")
	if err != nil {
		return nil, err
	}
	return assemble(
		nethttp.Rule{Limit: limit, Key: keyfuncs.RemoteAddr()},
		nethttp.Rule{LimitSlots: sockets, Key: keyfuncs.RemoteAddr()},
		func(key string) numbers {
			p := limit.For("", key).Policies()[0]
			return numbers{p.Limit(), p.Window(), sockets.For("", key).Limit(key)}
		})
}

// assemble puts guards with these rules before the handlers.
func assemble(request, socket nethttp.Rule, numbers func(key string) numbers) (*app, error) {
	requests, err := nethttp.New(nethttp.Config{Rules: []nethttp.Rule{request}})
	if err != nil {
		return nil, err
	}
	upgrades, err := websocketmw.New(websocketmw.Config{
		Rules:  []nethttp.Rule{socket},
		InBand: true, // so that the page can show the reason for a refusal
	})
	if err != nil {
		return nil, err
	}

	mux := http.NewServeMux()
	mux.Handle("GET /api/hello", requests.Handler(http.HandlerFunc(hello)))
	mux.Handle("GET /ws", gorillaws.Handler(upgrades, nil, greetings))
	mux.Handle("GET /{$}", page(numbers))
	mux.Handle("GET /limits", numbersOf(numbers))
	return &app{mux, upgrades, numbers}, nil
}

func hello(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	io.WriteString(w, "hello\n")
}

// greetings sends hello, and again after each message that it receives.
func greetings(conn *websocket.Conn, _ *http.Request) {
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
