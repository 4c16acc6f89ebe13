package main

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/nethttp"
)

// Limits of the server, in requests a second, between which the button switches.
const (
	highLimit = 50
	lowLimit  = 20
)

// A peer is the server that others send requests to. It counts what it admits and refuses.
type peer struct {
	handler   http.Handler
	high, low *core.Limiter
	isLow     atomic.Bool
	admitted  atomic.Int64
	refused   atomic.Int64
}

func newPeer() (*peer, error) {
	p := new(peer)
	store := memstore.New(memstore.Config{Observer: &core.Observer{
		Decided: func(_ context.Context, e core.DecisionEvent) {
			if e.Allowed {
				p.admitted.Add(1)
			} else {
				p.refused.Add(1)
			}
		},
	}})
	var err error
	if p.high, err = core.New(store, "peer", core.SlidingLog(core.PerSecond(highLimit))); err != nil {
		return nil, err
	}
	if p.low, err = p.high.With(core.SlidingLog(core.PerSecond(lowLimit))); err != nil {
		return nil, err
	}
	guard, err := nethttp.New(nethttp.Config{Rules: []nethttp.Rule{{
		Limiter: p.high,
		Key:     func(*http.Request) (string, error) { return "everybody", nil },
		Plan:    func(*http.Request, string) *core.Limiter { return p.limiter() },
	}}})
	if err != nil {
		return nil, err
	}
	p.handler = guard.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintln(w, "hello")
	}))
	return p, nil
}

// limiter returns the one in force.
func (p *peer) limiter() *core.Limiter {
	if p.isLow.Load() {
		return p.low
	}
	return p.high
}
