// A guard in one line. It may do nothing that New cannot.

package websocketmw

import (
	"errors"
	"fmt"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// Limit returns a guard of one limit, which is kept in this process: each key may have n
// sockets open at once.
//
//	sockets := core.Must(websocketmw.Limit("ws", keyfuncs.RemoteAddr(), 5))
//	http.Handle("/ws", sockets.Handler(upgrade))
//
// The name is shown to clients. The key says whose sockets are counted: behind a proxy,
// [keyfuncs.RemoteAddr] counts all clients as one. n is 0 to [core.NoLimit].
//
// Limit is short for slots and a guard with one rule. Write these instead for limits on messages, a
// plan, or another rule:
//
//	slots := core.Must(core.NewSlots(memstore.New(memstore.Config{}), "ws", 5))
//	sockets := core.Must(websocketmw.New(websocketmw.Config{
//		Rules: []nethttp.Rule{{Slots: slots, Key: keyfuncs.RemoteAddr()}},
//	}))
//
// The error joins all faults.
func Limit(name string, key keyfuncs.Func, n int64) (*Guard, error) {
	return LimitIn(memstore.New(memstore.Config{}), name, key, n)
}

// LimitIn is [Limit] with a store: package redisstore has one for a limit that all servers
// share. Guards with one store and name share their counts.
func LimitIn(s core.SlotStore, name string, key keyfuncs.Func, n int64) (*Guard, error) {
	slots, err := core.NewSlots(s, name, n)
	if key == nil {
		err = errors.Join(err, fmt.Errorf("headgate: limit %q: the key is nil: say whose sockets are counted, with a function of package keyfuncs", name))
	}
	if err != nil {
		return nil, err
	}
	return New(Config{Rules: []nethttp.Rule{{Slots: slots, Key: key}}})
}
