// Echo is an Echo server with a limit for each route, counted for each client address: on
// requests to /api/hello, and on failed logins at /api/login.
//
//	go run ./examples/echo
//
// Send eleven requests, of which the last is refused, and four wrong passwords, of which the
// last is refused unchecked:
//
//	curl -s -o /dev/null -w '%{http_code}\n' 'http://127.0.0.1:8080/api/hello?[1-11]'
//	curl -s -o /dev/null -w '%{http_code}\n' -d password=1234 'http://127.0.0.1:8080/api/login?[1-4]'
//
// With -redis redis://localhost:6379/0, all servers started with the same flag share the
// limits. Ctrl-C stops the server.
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
	"syscall"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/echomw"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:8080", "listen on this `address`")
	redisURL := flag.String("redis", "", "share the limits through the Redis at this `URL`, such as redis://localhost:6379/0")
	flag.Parse()
	if err := run(*addr, *redisURL); err != nil {
		fmt.Fprintln(os.Stderr, "echo:", err)
		os.Exit(1)
	}
}

// routes returns the handler of the application.
func routes(store core.Store) (http.Handler, error) {
	perMinute, err := core.New(store, "hello", core.SlidingLog(core.PerMinute(10)))
	if err != nil {
		return nil, err
	}
	failures, err := core.New(store, "login", core.SlidingLog(core.PerHour(3)))
	if err != nil {
		return nil, err
	}
	hellos, err := nethttp.New(nethttp.Config{Rules: []nethttp.Rule{{Limiter: perMinute, Key: keyfuncs.RemoteAddr()}}})
	if err != nil {
		return nil, err
	}
	logins, err := nethttp.New(nethttp.Config{
		Rules: []nethttp.Rule{{Limiter: failures, Key: keyfuncs.RemoteAddr(), Settle: onlyFailures}},
	})
	if err != nil {
		return nil, err
	}

	e := echo.New()
	e.GET("/", index)
	e.GET("/api/hello", hello, echomw.Limit(hellos))
	e.POST("/api/login", login, echomw.Limit(logins))
	return e, nil
}

// onlyFailures refunds the charge of a login unless the password was wrong.
func onlyFailures(_ *http.Request, o nethttp.Outcome) int64 {
	if o.Status == http.StatusUnauthorized {
		return 1
	}
	return 0
}

func hello(c echo.Context) error { return c.String(http.StatusOK, "hello\n") }

func login(c echo.Context) error {
	if c.FormValue("password") != "open sesame" {
		return echo.ErrUnauthorized
	}
	return c.String(http.StatusOK, "come in\n")
}

func index(c echo.Context) error {
	return c.String(http.StatusOK, fmt.Sprintf(`An Echo server. For each client address, /api/hello is limited to 10 requests in any
minute, and /api/login to 3 wrong passwords in any hour. Try

	curl -i http://%[1]s/api/hello
	curl -i -d 'password=open sesame' http://%[1]s/api/login
`, c.Request().Host))
}

// run serves until Ctrl-C, then waits for the requests in progress.
func run(addr, redisURL string) error {
	store, err := newStore(redisURL)
	if err != nil {
		return err
	}
	handler, err := routes(store)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	fmt.Printf("Listening on http://%v/\n", listener.Addr())

	server := &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	stopped := make(chan error, 1)
	context.AfterFunc(ctx, func() {
		stop() // a second Ctrl-C ends the process at once
		stopped <- server.Shutdown(context.Background())
	})
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-stopped
}

// newStore returns the store of the limits: in this process, or in Redis.
func newStore(url string) (core.Store, error) {
	if url == "" {
		return memstore.New(memstore.Config{}), nil
	}
	options, err := redis.ParseURL(url)
	if err != nil {
		return nil, fmt.Errorf("-redis: %w", err)
	}
	options.ContextTimeoutEnabled = true // so that no request waits for an unresponsive Redis
	return redisstore.New(redis.NewClient(options), redisstore.Config{})
}
