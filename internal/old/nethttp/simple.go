package nethttp

import (
	"errors"
	"fmt"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/keyfuncs"
)

// Limit returns a guard of one limit, which is kept in this process:
//
//	limit := core.Must(nethttp.Limit("api", keyfuncs.RemoteAddr(), core.SlidingLog(core.PerMinute(60))))
//	http.ListenAndServe(addr, limit.Handler(mux))
//
// The name is shown to clients. The key says who is charged, and is yours to choose. Behind a
// proxy, [keyfuncs.RemoteAddr] charges all clients as one, the proxy. There the key is, say,
//
//	core.Must(keyfuncs.XForwardedFor("10.0.0.0/8"))
//
// Limit is short for a limiter and a guard with one rule. Write these instead for a plan, a cost,
// or another rule:
//
//	limiter := core.Must(core.New(memstore.New(memstore.Config{}), "api", core.SlidingLog(core.PerMinute(60))))
//	limit := core.Must(nethttp.New(nethttp.Config{
//		Rules: []nethttp.Rule{{Limiter: limiter, Key: keyfuncs.RemoteAddr()}},
//	}))
//
// So each guard that Limit returns counts on its own, also if two have one name, and takes up
// to [memstore.DefaultMaxBytes] of memory. [LimitIn] is for a store that they share.
//
// The error joins all faults of the name, the key and the policies, of which there are 1 to 8: see
// [core.New].
func Limit(name string, key keyfuncs.Func, policies ...core.Policy) (*Guard, error) {
	return LimitIn(memstore.New(memstore.Config{}), name, key, policies...)
}

// LimitIn is [Limit] with a store: package redisstore has one for a limit that all servers
// share. Guards with one store and name share their counts.
//
//	store := core.Must(redisstore.OpenURL("redis://localhost:6379/0", redisstore.Config{}))
//	limit := core.Must(nethttp.LimitIn(store, "api", keyfuncs.RemoteAddr(), core.SlidingLog(core.PerMinute(60))))
func LimitIn(s core.Store, name string, key keyfuncs.Func, policies ...core.Policy) (*Guard, error) {
	l, err := core.New(s, name, policies...)
	if key == nil {
		err = errors.Join(err, fmt.Errorf("headgate: limit %q: the key is nil: say who is charged, with a function of package keyfuncs", name))
	}
	if err != nil {
		return nil, err
	}
	return New(Config{Rules: []Rule{{Limiter: l, Key: key}}})
}

// InFlight returns a guard with one concurrency limit, which is kept in this process. Each key may
// have n requests that are handled at once, and others are refused.
//
//	exports := core.Must(nethttp.InFlight("exports", keyfuncs.RemoteAddr(), 2))
//	http.Handle("/export", exports.Handler(export))
//
// The name is shown to clients. n is 0 to [core.NoLimit]. InFlight is short for slots and a guard
// with one rule. Write these instead if requests should wait, or for a plan or another rule:
//
//	slots := core.Must(core.NewSlots(memstore.New(memstore.Config{}), "exports", 2))
//	exports := core.Must(nethttp.New(nethttp.Config{
//		Rules: []nethttp.Rule{{Slots: slots, Key: keyfuncs.RemoteAddr()}},
//	}))
//
// The error joins all faults.
func InFlight(name string, key keyfuncs.Func, n int64) (*Guard, error) {
	return InFlightIn(memstore.New(memstore.Config{}), name, key, n)
}

// InFlightIn is [InFlight] with a store: package redisstore has one for a limit that all servers
// share. Guards with one store and name share their counts.
func InFlightIn(s core.SlotStore, name string, key keyfuncs.Func, n int64) (*Guard, error) {
	slots, err := core.NewSlots(s, name, n)
	if key == nil {
		err = errors.Join(err, fmt.Errorf("headgate: limit %q: the key is nil: say whose requests are counted, with a function of package keyfuncs", name))
	}
	if err != nil {
		return nil, err
	}
	return New(Config{Rules: []Rule{{Slots: slots, Key: key}}})
}
