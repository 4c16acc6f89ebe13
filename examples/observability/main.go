// Observability is a server with simulated clients, so that there is something to see. It has the
// page of package stats, and metrics for the board in this folder.
//
//	go run ./examples/observability
//
// Open http://127.0.0.1:8080/ for the page. To see the board, let a Prometheus scrape the
// server, and import board.json into Grafana:
//
//	prometheus --config.file examples/observability/prometheus.yml --storage.tsdb.path /tmp/headgate
//
// The limits are in a Redis inside the process, which is away for three seconds of every
// thirty. With -redis URL they are in another. Ctrl-C stops the server.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/core/stats"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:8080", "listen on this `address`")
	redisURL := flag.String("redis", "", "keep the limits in the Redis at this `URL`, such as redis://localhost:6379/0")
	flag.Parse()
	if err := run(*addr, *redisURL); err != nil {
		fmt.Fprintln(os.Stderr, "observability:", err)
		os.Exit(1)
	}
}

// A service is what is limited.
type service struct {
	api     http.Handler
	login   *core.Limiter
	streams *core.Slots
}

// newService returns a service whose limits are in the store. Streams are limited in this
// process.
func newService(store, local core.Store) (*service, error) {
	api := core.NewLimiter(store, "api", core.SlidingWindow(120, time.Minute).Named("minute"), core.TokenBucket(5, time.Second).Burst(10).Named("burst"))
	guard, err := nethttp.New(nethttp.Config{Rates: []nethttp.Rate{{
		Limiter: api,
		Key:     keyfuncs.Header("X-User"), // which the simulated clients are trusted to write
		Cost:    func(*http.Request) int64 { return 2 },
	}}})
	if err != nil {
		return nil, err
	}
	handler := guard.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_ = nethttp.SetCost(r.Context(), api, 1)
	}))
	return &service{handler, core.NewLimiter(local, "login", core.FixedWindow(5, time.Minute)), core.NewSlots(local, "streams", 3)}, nil
}

func run(addr, redisURL string) error {
	seen := stats.New(stats.Config{Logger: slog.Default()})
	client, away, err := connect(redisURL)
	if err != nil {
		return err
	}
	observers := []*core.Observer{seen.Observer()}
	store, err := redisstore.New(client, redisstore.Config{Observers: observers})
	if err != nil {
		return err
	}
	s, err := newService(store, &core.MemoryStore{Observers: observers})
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/debug/headgate/", seen.Handler())
	mux.Handle("GET /{$}", http.RedirectHandler("/debug/headgate/?refresh=5", http.StatusFound))
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	fmt.Printf("Listening on http://%v/\n", listener.Addr())

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	go s.simulate(ctx)
	go every(ctx, 30*time.Second, away)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
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

// connect returns a client of a Redis, and a function that makes it fail for a while, which
// does nothing to one that is not ours.
func connect(url string) (client *redis.Client, away func(context.Context), err error) {
	options := &redis.Options{}
	away = func(context.Context) {}
	if url == "" {
		server, err := miniredis.Run()
		if err != nil {
			return nil, nil, err
		}
		options.Addr = server.Addr()
		away = func(ctx context.Context) {
			server.SetError("LOADING on purpose")
			pause(ctx, 3*time.Second)
			server.SetError("")
		}
	} else if options, err = redis.ParseURL(url); err != nil { // which repeats the password
		return nil, nil, errors.New("-redis is not such as redis://user:password@host:6379/0")
	}
	options.ContextTimeoutEnabled = true // so that no request waits for an unresponsive Redis
	options.MaxRetries = -1              // nor for a repetition
	return redis.NewClient(options), away, nil
}
