// Campus is a server for many students behind one address, one of whom is an abuser.
//
//	go run ./examples/campus
//
// It serves a campus twice, with real requests from one address. Each of 500 students sends 6
// requests. The abuser sends twice as many as all students together. It does so with its own
// cookie, without one, with each new one that it is given, and with forged ones.
//
// Without session keys there is one limit, on the address, and the abuser uses most of it.
// With session keys, four limits are charged together:
//
//	student     10 requests in any minute, for each cookie older than ten minutes
//	newcomers   20 requests in any minute, for all others of the address together
//	cookies     100 new cookies in any 24 hours, which is how long a cookie is valid
//	address     8 requests for each student in any minute, and 1030, for all together
//
// Then every request of the students is served. In this minute the abuser gets its own 10 and the
// 20 that newcomers share, whatever it does with its cookies. If it collects cookies for hours, it
// has 100 at most, which are worth 1000 requests a minute: the address has room for them. The
// program prints how many requests were served, and http://127.0.0.1:8080/ shows it.
//
// The price is that only 100 new browsers of an address are admitted in 24 hours, and an
// abuser may be all of them. So the students of the simulation have a cookie that was issued
// when they signed in, which is not charged to the address.
//
// The limits of the second run are also on
//
//	curl -i http://127.0.0.1:8080/api/hello
//
// where you are a newcomer. Flag -students 100 changes the number of students, and -plot served.svg
// also writes the picture to a file. Flag -once ends the program after it has printed the numbers;
// otherwise Ctrl-C stops it. With -redis redis://localhost:6379/0 the limits are in Redis.
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
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/keyfuncs"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:8080", "listen on this `address`")
	students := flag.Int("students", 500, "`number` of students, 1 to 10000")
	redisURL := flag.String("redis", "", "keep the limits in the Redis at this `URL`, such as redis://localhost:6379/0")
	plot := flag.String("plot", "", "write the picture to this `file`, as SVG")
	once := flag.Bool("once", false, "end after printing the numbers")
	flag.Parse()
	if flag.NArg() > 0 {
		exit(2, fmt.Errorf("unexpected argument %q", flag.Arg(0)))
	}
	if *students < 1 || *students > 10_000 {
		exit(2, fmt.Errorf("-students %d: it must be 1 to 10000", *students))
	}
	store, err := newStore(*redisURL)
	if err != nil {
		exit(2, err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // so that a second Ctrl-C ends the process at once
	listener, err := net.Listen("tcp", *addr)
	if err != nil {
		exit(1, err)
	}

	served, err := simulate(ctx, overTCP, store, *students)
	switch {
	case errors.Is(err, context.Canceled):
		return
	case err != nil:
		exit(1, err)
	}
	report(os.Stdout, served)
	if *plot != "" {
		if err := os.WriteFile(*plot, picture(served), 0o644); err != nil {
			exit(1, err)
		}
	}
	if *once {
		return
	}
	campus, err := newCampus(store, keyfuncs.RemoteAddr(), *students)
	if err != nil {
		exit(1, err)
	}
	fmt.Printf("\nListening on http://%v/, where a page shows the requests served. Ctrl-C stops the server.\n", listener.Addr())
	if err := serve(ctx, listener, routes(campus, served)); err != nil {
		exit(1, err)
	}
}

// newStore returns the store of the limits: in this process, or in Redis.
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

// exit prints err on one line and ends the program, with status 2 for an invalid command
// line and 1 for later errors.
func exit(status int, err error) {
	fmt.Fprintln(os.Stderr, "campus:", strings.ReplaceAll(err.Error(), "\n", "; "))
	os.Exit(status)
}
