// Gin is a Gin server with a limit on the routes under /api, for each signed-in user, and
// for each address of other clients.
//
//	go run ./examples/gin
//
// Send eleven requests without signing in, of which the last is refused, and one of a user,
// which is charged separately:
//
//	curl -s -o /dev/null -w '%{http_code}\n' 'http://127.0.0.1:8080/api/hello?[1-11]'
//	curl -i -H 'Authorization: Bearer token-of-anna' http://127.0.0.1:8080/api/hello
//
// With -redis redis://localhost:6379/0, all servers started with the same flag share the
// limit. Ctrl-C stops the server.
package main

import (
	"cmp"
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

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/ginmw"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:8080", "listen on this `address`")
	redisURL := flag.String("redis", "", "share the limit through the Redis at this `URL`, such as redis://localhost:6379/0")
	flag.Parse()
	if err := run(*addr, *redisURL); err != nil {
		fmt.Fprintln(os.Stderr, "gin:", err)
		os.Exit(1)
	}
}

// routes returns the handler of the application.
func routes(store core.Store) (http.Handler, error) {
	limiter, err := core.New(store, "api", core.SlidingLog(core.PerMinute(10)))
	if err != nil {
		return nil, err
	}
	address := keyfuncs.RemoteAddr()
	guard, err := nethttp.New(nethttp.Config{Rules: []nethttp.Rule{{Limiter: limiter, Key: address}}})
	if err != nil {
		return nil, err
	}
	userOrAddress := ginmw.First(ginmw.Value("user"), ginmw.Request(address))

	r := gin.New()
	r.Use(gin.Recovery())
	r.GET("/", index)
	api := r.Group("/api", authenticate, ginmw.LimitBy(guard, userOrAddress))
	api.GET("/hello", func(c *gin.Context) {
		c.String(http.StatusOK, "hello, %s\n", cmp.Or(c.GetString("user"), "stranger"))
	})
	return r, nil
}

// users are identified by tokens. Real tokens are long and random, so that they cannot be
// guessed.
var users = map[string]string{"token-of-anna": "anna", "token-of-ben": "ben"}

// authenticate sets the user if the token is valid. Other requests are charged to their
// address.
func authenticate(c *gin.Context) {
	token, _ := strings.CutPrefix(c.GetHeader("Authorization"), "Bearer ")
	if user, ok := users[token]; ok {
		c.Set("user", user)
	}
}

func index(c *gin.Context) {
	c.String(http.StatusOK, `A Gin server. /api/hello is limited to 10 requests in any minute for each signed-in user,
and for each address of other clients. Try

	curl -i http://%[1]s/api/hello
	curl -i -H 'Authorization: Bearer token-of-anna' http://%[1]s/api/hello
`, c.Request.Host)
}

// run serves until Ctrl-C, then waits for the requests in progress.
func run(addr, redisURL string) error {
	gin.SetMode(gin.ReleaseMode)
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

// newStore returns the store of the limit: in this process, or in Redis.
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
