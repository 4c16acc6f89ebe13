package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/examples/internal/pages"
)

const (
	servers = 4
	clients = 8 // of each server
	tenant  = "tenant-7"
)

//go:embed page.html
var pageHTML string

// A fleet is servers that share a limit.
type fleet struct {
	limit   int64
	leases  atomic.Bool
	servers [servers]*server
	last    atomic.Pointer[second]
}

// A server decides with leases and without, by the same state in Redis.
type server struct {
	clients [2]*redis.Client
	shared  *redisstore.Store
	leased  *redisstore.Store
	with    *core.Limiter
	alone   *core.Limiter

	count
}

// A count is what a server has done so far.
type count struct{ asked, admitted, failed, calls atomic.Int64 }

// A second is what all servers did in one.
type second struct {
	Limit    int64   `json:"limit"`
	Leases   bool    `json:"leases"`
	Asked    int64   `json:"asked"`
	Admitted int64   `json:"admitted"`
	Failed   int64   `json:"failed"`
	Calls    int64   `json:"calls"`
	Servers  []share `json:"servers"`
}

// A share is that of one server.
type share struct {
	Asked    int64 `json:"asked"`
	Admitted int64 `json:"admitted"`
	Calls    int64 `json:"calls"`
}

func (s second) String() string {
	how := "without leases"
	if s.Leases {
		how = "with leases"
	}
	return fmt.Sprintf("%s: %d requests, %d admitted of %d, %d calls of Redis", how, s.Asked, s.Admitted, s.Limit, s.Calls)
}

func newFleet(options redis.Options, limit int64, leases bool) (*fleet, error) {
	f := &fleet{limit: limit}
	f.leases.Store(leases)
	f.last.Store(&second{Limit: limit, Leases: leases})
	// Leases last as long as a window, many times as long as a call of the embedded Redis.
	policy := core.FixedWindow(limit, time.Second)
	for i := range f.servers {
		s := new(server)
		for i := range s.clients { // of its own
			own := options
			own.ContextTimeoutEnabled, own.MaxRetries = true, -1
			s.clients[i] = redis.NewClient(&own)
			s.clients[i].AddHook(calls{&s.calls})
		}
		config := redisstore.Config{
			Timeout: time.Second,
			Failure: redisstore.FailClosed, // or it would count by itself
		}
		var err error
		if s.shared, err = redisstore.New(s.clients[0], config); err != nil {
			return nil, err
		}
		config.Lease = time.Second
		if s.leased, err = redisstore.New(s.clients[1], config); err != nil {
			return nil, err
		}
		s.with, s.alone = core.NewLimiter(s.leased, "tenant", policy), core.NewLimiter(s.shared, "tenant", policy)
		f.servers[i] = s
	}
	return f, nil
}

// calls is a hook of a client of Redis that counts its calls.
type calls struct{ n *atomic.Int64 }

func (calls) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c calls) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.n.Add(1)
		return next(ctx, cmd)
	}
}

func (c calls) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.n.Add(1)
		return next(ctx, cmds)
	}
}

// run sends the requests until ctx is done, and reports each second.
func (f *fleet) run(ctx context.Context, demand int64, report func(second)) {
	var all sync.WaitGroup
	for _, s := range f.servers {
		for range clients {
			all.Go(func() { f.ask(ctx, s, time.Second*servers*clients/time.Duration(demand)) })
		}
	}
	before := f.now()
	for {
		next := time.Now().Truncate(time.Second).Add(time.Second) // when a window of the limit ends
		select {
		case <-time.After(time.Until(next)):
		case <-ctx.Done():
			all.Wait()
			return
		}
		now := f.now()
		passed := now.since(before)
		before = now
		f.last.Store(&passed)
		report(passed)
	}
}

// ask sends requests for one key, at that distance, or as fast as they are decided.
func (f *fleet) ask(ctx context.Context, s *server, gap time.Duration) {
	const batch = 20 // a timer for each would take longer than a decision
	for next := time.Now(); ctx.Err() == nil; next = next.Add(batch * gap) {
		if late := time.Since(next); late > time.Second {
			next = time.Now() // what was missed is not caught up with
		}
		time.Sleep(time.Until(next))
		for range batch {
			limiter := s.alone
			if f.leases.Load() {
				limiter = s.with
			}
			d, err := limiter.Allow(ctx, tenant)
			s.asked.Add(1)
			switch {
			case err != nil:
				s.failed.Add(1)
			case d.Allowed:
				s.admitted.Add(1)
			}
		}
	}
}

// now returns what was done so far.
func (f *fleet) now() second {
	all := second{Limit: f.limit, Leases: f.leases.Load()}
	for _, s := range f.servers {
		x := share{s.asked.Load(), s.admitted.Load(), s.calls.Load()}
		all.Asked, all.Admitted, all.Calls = all.Asked+x.Asked, all.Admitted+x.Admitted, all.Calls+x.Calls
		all.Failed += s.failed.Load()
		all.Servers = append(all.Servers, x)
	}
	return all
}

// since returns what was done after before.
func (s second) since(before second) second {
	s.Asked, s.Admitted, s.Failed, s.Calls = s.Asked-before.Asked, s.Admitted-before.Admitted, s.Failed-before.Failed, s.Calls-before.Calls
	all := s.Servers
	s.Servers = nil
	for i, x := range all {
		b := before.Servers[i]
		s.Servers = append(s.Servers, share{x.Asked - b.Asked, x.Admitted - b.Admitted, x.Calls - b.Calls})
	}
	return s
}

// close gives back what is leased.
func (f *fleet) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var faults []error
	for _, s := range f.servers {
		faults = append(faults, s.leased.Close(ctx), s.shared.Close(ctx), s.clients[0].Close(), s.clients[1].Close())
	}
	return errors.Join(faults...)
}

// routes returns the handler of the page, of the numbers that it shows, and of its button.
func (f *fleet) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { pages.Write(w, pageHTML) })
	mux.HandleFunc("GET /api/second", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		_ = json.NewEncoder(w).Encode(f.last.Load())
	})
	mux.HandleFunc("POST /api/leases", func(w http.ResponseWriter, r *http.Request) {
		on := r.URL.Query().Get("on")
		if on != "true" && on != "false" {
			http.Error(w, "on must be true or false", http.StatusBadRequest)
			return
		}
		f.leases.Store(on == "true")
		w.WriteHeader(http.StatusNoContent)
	})
	return http.NewCrossOriginProtection().Handler(mux)
}
