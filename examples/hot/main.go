// Hot shares one limit of 100,000 requests a second among four servers, and counts the calls of
// Redis that it takes.
//
//	go run ./examples/hot
//
// All requests are for one key, the worst case for a limit in Redis: every server wants to charge
// the same value. With leases a server charges several units in one call, and decides the next
// requests alone. The limit of all servers together still holds. The terminal and
// http://127.0.0.1:8080/ show how many requests were admitted, and with how many calls. A button
// there turns leases off and on.
//
// The four servers ask for 200,000 requests a second, or what -demand says, of which the limit,
// or what -limit says, is admitted. Each has a client and a store of its own, as four processes
// have. The Redis is embedded, and slow: try -redis redis://localhost:6379/0. Ctrl-C stops the
// program.
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

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:8080", "listen on this `address`")
	redisURL := flag.String("redis", "", "use the Redis at this `URL`, such as redis://localhost:6379/0, instead of an embedded one")
	demand := flag.Int64("demand", 200_000, "`requests` a second that all servers are asked for")
	limit := flag.Int64("limit", 100_000, "`requests` a second that they may admit together")
	leases := flag.Bool("leases", true, "begin with leases")
	flag.Parse()
	switch {
	case flag.NArg() > 0:
		exit(2, fmt.Errorf("unexpected argument %q", flag.Arg(0)))
	case *demand < 1 || *demand > 10_000_000 || *limit < 1 || *limit > 10_000_000:
		exit(2, errors.New("-demand and -limit must be 1 to 10000000"))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // so that a second Ctrl-C ends the process at once
	if err := run(ctx, *addr, *redisURL, *demand, *limit, *leases); err != nil {
		exit(1, err)
	}
}

// run runs the servers until ctx is done.
func run(ctx context.Context, addr, redisURL string, demand, limit int64, leases bool) error {
	options := &redis.Options{}
	if redisURL == "" {
		embedded := miniredis.NewMiniRedis()
		if err := embedded.Start(); err != nil {
			return err
		}
		defer embedded.Close()
		options.Addr = embedded.Addr()
	} else {
		var err error
		if options, err = redis.ParseURL(redisURL); err != nil { // which repeats the password
			return errors.New("-redis is not such as redis://user:password@host:6379/0")
		}
	}
	f, err := newFleet(*options, limit, leases)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return errors.Join(err, f.close())
	}
	page := &http.Server{Handler: f.routes(), ReadHeaderTimeout: 5 * time.Second}
	go func() { _ = page.Serve(listener) }()
	defer page.Close()
	fmt.Printf("Listening on http://%v/, where a page shows this. Ctrl-C stops the program.\n\n", listener.Addr())

	f.run(ctx, demand, func(s second) { fmt.Println(s) })
	return f.close()
}

// exit prints err on one line and ends the program, with status 2 for an invalid command
// line and 1 for later errors.
func exit(status int, err error) {
	fmt.Fprintln(os.Stderr, "hot:", strings.ReplaceAll(err.Error(), "\n", "; "))
	os.Exit(status)
}
