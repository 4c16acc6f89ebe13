// Outgoing shows three processes that keep to the limit of a server together, and what they do
// when it lowers its limit.
//
//	go run ./examples/outgoing
//
// The server admits 50 requests a second and refuses all others with 429. Three processes, each
// with two workers, send as many requests as they may. They share a limit of 40 a second in Redis.
// It is below the server's limit, because requests that are sent apart may arrive close together.
// The terminal and http://127.0.0.1:8080/ show what each of them sends, how many of its requests
// wait, and how many the server refused: none. A button there lowers the server's limit to 20. It
// then refuses requests that are on their way at that moment, at most one of each worker. After
// that it refuses none: all processes obey an answer that one of them got.
//
// The Redis is embedded unless -redis redis://localhost:6379/0 names one. Ctrl-C stops the
// program.
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

	"github.com/alicebob/miniredis/v2"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:8080", "serve the page on this `address`")
	redisURL := flag.String("redis", "", "use the Redis at this `URL`, such as redis://localhost:6379/0, instead of an embedded one")
	worker := flag.String("worker", "", "send requests to this `URL`: the program starts itself with this")
	flag.Parse()
	if flag.NArg() > 0 {
		exit(2, fmt.Errorf("unexpected argument %q", flag.Arg(0)))
	}
	if *worker != "" {
		if err := send(*worker, *redisURL); err != nil {
			exit(1, err)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // so that a second Ctrl-C ends the process at once
	if err := run(ctx, *addr, *redisURL); err != nil {
		exit(1, err)
	}
}

// run runs the server, the processes that send it requests, and the page, until ctx is done.
func run(ctx context.Context, addr, redisURL string) error {
	if redisURL == "" {
		embedded, err := miniredis.Run()
		if err != nil {
			return err
		}
		defer embedded.Close()
		redisURL = "redis://" + embedded.Addr() + "/0"
	}
	peer, err := newPeer()
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	b := &board{peer: peer}
	page := &http.Server{Handler: b.routes(), ReadHeaderTimeout: 5 * time.Second}
	go func() { _ = page.Serve(listener) }()
	defer page.Close()

	server := &http.Server{Handler: peer.handler, ReadHeaderTimeout: 5 * time.Second}
	requests, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	go func() { _ = server.Serve(requests) }()
	defer server.Close()

	fmt.Printf("Listening on http://%v/, where a page shows this. Ctrl-C stops the program.\n\n", listener.Addr())
	return b.run(ctx, "http://"+requests.Addr().String()+"/", redisURL)
}

// exit prints err on one line and ends the program, with status 2 for an invalid command
// line and 1 for later errors.
func exit(status int, err error) {
	fmt.Fprintln(os.Stderr, "outgoing:", strings.ReplaceAll(err.Error(), "\n", "; "))
	os.Exit(status)
}
