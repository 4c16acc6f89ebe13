package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/nethttp"
)

const (
	processes = 3
	workers   = 2 // of each process

	// ownLimit is what all processes send in a second at most. It is below the limit of the
	// server, because what is sent at a distance may arrive close together.
	ownLimit = 40
)

// newTransport returns the transport of a process. All that use one Redis send no more
// together than the limit, and heed what the server has told one of them.
func newTransport(redisURL string, base http.RoundTripper) (*nethttp.Transport, error) {
	options, err := redis.ParseURL(redisURL)
	if err != nil { // which repeats the password
		return nil, errors.New("-redis is not such as redis://user:password@host:6379/0")
	}
	options.ContextTimeoutEnabled, options.MaxRetries = true, -1
	store, err := redisstore.New(redis.NewClient(options), redisstore.Config{
		Timeout: 5 * time.Second,       // a request may wait for Redis
		Failure: redisstore.FailClosed, // rather than be sent beyond the limit
	})
	if err != nil {
		return nil, err
	}
	limiter, err := core.New(store, "outgoing", core.SlidingLog(core.PerSecond(ownLimit)))
	if err != nil {
		return nil, err
	}
	return nethttp.NewTransport(nethttp.TransportConfig{
		Limiter: limiter,
		Base:    base,
		Retries: 100, // a worker has nothing else to do
		Reads:   []nethttp.Reader{nearlyUsedUp},
	})
}

// nearlyUsedUp stops all before the server has to refuse: when it has fewer units left than
// there are workers, each of which may have a request on its way.
func nearlyUsedUp(r *http.Response, _ time.Time) time.Duration {
	var left, seconds int64
	if _, err := fmt.Sscanf(r.Header.Get("RateLimit"), `"peer";r=%d;t=%d`, &left, &seconds); err != nil || left >= processes*workers {
		return 0
	}
	return time.Duration(min(seconds, 60)) * time.Second
}

// A report is what a process has done so far, and how many of its requests wait now.
type report struct {
	Sent    int64 `json:"sent"`
	Refused int64 `json:"refused"`
	Failed  int64 `json:"failed"`
	Waiting int64 `json:"waiting"`
}

// counts are the same, as they are counted.
type counts struct{ sent, refused, failed, open, flying atomic.Int64 }

// RoundTrip sends a request, and counts it.
func (c *counts) RoundTrip(r *http.Request) (*http.Response, error) {
	c.flying.Add(1)
	defer c.flying.Add(-1)
	c.sent.Add(1)
	response, err := http.DefaultTransport.RoundTrip(r)
	if err == nil && response.StatusCode == http.StatusTooManyRequests {
		c.refused.Add(1)
	}
	return response, err
}

func (c *counts) report() report {
	return report{c.sent.Load(), c.refused.Load(), c.failed.Load(), max(c.open.Load()-c.flying.Load(), 0)}
}

// send is one of the processes. It sends requests as fast as it may, and reports what it does,
// until its standard input ends, as it does when the program ends that started it.
func send(url, redisURL string) error {
	c := new(counts)
	transport, err := newTransport(redisURL, c)
	if err != nil {
		return err
	}
	client := &http.Client{Transport: transport}
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for ctx.Err() == nil {
				c.open.Add(1)
				if err := fetch(ctx, client, url); err != nil && ctx.Err() == nil {
					c.failed.Add(1)
					fmt.Fprintln(os.Stderr, "outgoing:", err)
					wait(ctx, time.Second)
				}
				c.open.Add(-1)
			}
		})
	}
	out := json.NewEncoder(os.Stdout)
	for ctx.Err() == nil {
		if err := out.Encode(c.report()); err != nil {
			stop()
		}
		wait(ctx, 100*time.Millisecond)
	}
	all.Wait()
	return nil
}

func fetch(ctx context.Context, client *http.Client, url string) error {
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

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
