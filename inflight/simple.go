package inflight

import (
	"errors"
	"fmt"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/keyfuncs"
)

// Limit returns a guard of one limit, which is kept in this process: each key may have n
// requests handled at once, and others are refused.
//
//	limit := core.Must(inflight.Limit("exports", keyfuncs.RemoteAddr(), 2))
//	http.Handle("/export", limit.Handler(export))
//
// The name is shown to clients. The key says whose requests are counted: behind a proxy,
// [keyfuncs.RemoteAddr] counts all clients as one. n is 0 to [core.NoLimit].
//
// Limit is short for slots and a guard with one rule, to write instead when requests should
// wait, or the rule have a plan or another beside it:
//
//	slots := core.Must(core.NewSlots(memstore.New(memstore.Config{}), "exports", 2))
//	limit := core.Must(inflight.New(inflight.Config{
//		Rules: []inflight.Rule{{Slots: slots, Key: keyfuncs.RemoteAddr()}},
//	}))
//
// The error joins all that is wrong.
func Limit(name string, key keyfuncs.Func, n int64) (*Guard, error) {
	return LimitIn(memstore.New(memstore.Config{}), name, key, n)
}

// LimitIn is [Limit] with a store: package redisstore has one for a limit that all servers
// share. Guards with one store and name share their counts.
func LimitIn(s core.SlotStore, name string, key keyfuncs.Func, n int64) (*Guard, error) {
	slots, err := core.NewSlots(s, name, n)
	if key == nil {
		err = errors.Join(err, fmt.Errorf("headgate: limit %q: the key is nil: say whose requests are counted, with a function of package keyfuncs", name))
	}
	if err != nil {
		return nil, err
	}
	return New(Config{Rules: []Rule{{Slots: slots, Key: key}}})
}
