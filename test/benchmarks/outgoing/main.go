// Command outgoing measures how many requests three processes send to a server that admits 50 in
// any second. It also measures how many of them the server refuses. The processes share a limit in
// Redis. It starts a redis-server of its own. Run it in the folder above:
//
//	go run ./benchmarks/outgoing -limit 'sliding-log 50/1s'
//	go run ./benchmarks/outgoing -limit 'sliding-log 50/1050ms'
//	go run ./benchmarks/outgoing -limit 'sliding-log 50/1050ms' -away 9s -failure closed
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
	"github.com/headgate/headgate/outgoing"
)

const (
	processes = 3
	workers   = 10 // of each process
	peerLimit = 50
)

type config struct {
	limit         core.Policy
	lasts, away   time.Duration
	failure       string
	servers       int
	worker, redis string
}

func main() {
	c := config{limit: core.SlidingLog(peerLimit, time.Second)}
	flag.TextVar(&c.limit, "limit", c.limit, "the `policy` that the processes share")
	flag.DurationVar(&c.lasts, "lasts", 20*time.Second, "how long they send")
	flag.DurationVar(&c.away, "away", 0, "how long Redis is stopped, in the middle")
	flag.StringVar(&c.failure, "failure", "local", "what they do meanwhile: `local`, open or closed")
	flag.IntVar(&c.servers, "servers", 0, "as how `many` they know themselves, for -failure local")
	flag.StringVar(&c.worker, "worker", "", "send requests to this `URL`: the program starts itself with this")
	flag.StringVar(&c.redis, "redis", "", "the `socket` of Redis, for -worker")
	flag.Parse()
	run := c.study
	if c.worker != "" {
		run = c.send
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "outgoing:", err)
		os.Exit(1)
	}
}

// study starts all, and prints what the server saw.
func (c config) study() error {
	folder, err := os.MkdirTemp("", "outgoing")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(folder) }()
	c.redis = filepath.Join(folder, "socket")
	redis := exec.Command("redis-server", "--port", "0", "--unixsocket", c.redis, "--save", "", "--dir", folder)
	if err := redis.Start(); err != nil {
		return err
	}
	defer func() { _, _ = redis.Process.Kill(), redis.Wait() }()
	for listens := false; !listens; <-time.After(10 * time.Millisecond) {
		_, err := os.Stat(c.redis)
		listens = err == nil
	}

	var admitted, refused atomic.Int64
	guard, err := nethttp.New(nethttp.Config{
		Rates: []nethttp.Rate{{
			Limiter: core.NewLimiter(new(core.MemoryStore), "peer", core.SlidingLog(peerLimit, time.Second)),
			Key:     keyfuncs.Everyone(),
		}},
		Fields:    nethttp.NoFields, // it says Retry-After, as most do
		OnRefused: func(http.ResponseWriter, *http.Request, *nethttp.Verdict) { refused.Add(1) },
	})
	if err != nil {
		return err
	}
	peer := httptest.NewServer(guard.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { admitted.Add(1) })))
	defer peer.Close()

	var all sync.WaitGroup
	failed := make(chan error, processes)
	for range processes {
		all.Go(func() { failed <- c.start(peer.URL) })
	}
	if c.away > 0 {
		<-time.After((c.lasts - c.away) / 2)
		_ = redis.Process.Signal(syscall.SIGSTOP)
		<-time.After(c.away)
		_ = redis.Process.Signal(syscall.SIGCONT)
	}
	all.Wait()
	close(failed)
	for e := range failed {
		err = errors.Join(err, e)
	}
	fmt.Printf("%v: %.1f admitted a second, %d refused in %v\n", c.limit, float64(admitted.Load())/c.lasts.Seconds(), refused.Load(), c.lasts)
	return err
}

// start runs one of the processes.
func (c config) start(url string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	worker := exec.Command(self, "-worker", url, "-redis", c.redis, "-limit", c.limit.String(),
		"-lasts", c.lasts.String(), "-failure", c.failure, "-servers", strconv.Itoa(c.servers))
	worker.Stderr = os.Stderr
	return worker.Run()
}

// send is one of the processes.
func (c config) send() error {
	failure, ok := map[string]redisstore.Failure{
		"local": redisstore.FailLocal, "open": redisstore.FailOpen, "closed": redisstore.FailClosed,
	}[c.failure]
	if !ok {
		return errors.New("-failure is not local, open or closed")
	}
	store, err := redisstore.Open("unix://"+c.redis, redisstore.Config{Failure: failure, Servers: c.servers})
	if err != nil {
		return err
	}
	defer func() { _ = store.Client().Close() }()
	limiter := core.NewLimiter(store, "outgoing", c.limit)
	client := &http.Client{Transport: &outgoing.Transport{Limiter: limiter}}
	ctx, stop := context.WithTimeout(context.Background(), c.lasts)
	defer stop()
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for ctx.Err() == nil {
				if err := get(ctx, client, c.worker); err != nil { // Redis is away, say
					<-time.After(10 * time.Millisecond)
				}
			}
		})
	}
	all.Wait()
	return nil
}

func get(ctx context.Context, client *http.Client, url string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	response, err := client.Do(r)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, response.Body)
	return errors.Join(err, response.Body.Close())
}
