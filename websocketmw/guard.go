// The Guard: it owns the rules, the sockets and the refusals, and puts them together for a request. It
// may not touch a connection, and has no lock.

package websocketmw

import (
	"fmt"
	"io"
	"net/http"
	"slices"

	"github.com/headgate/headgate/internal/carried"
	"github.com/headgate/headgate/nethttp"
	"github.com/headgate/headgate/websocketmw/internal/fleet"
	"github.com/headgate/headgate/websocketmw/internal/frames"
)

// A Guard decides which upgrades are admitted, and tracks the open sockets. Make one
// with [New]. It is safe for concurrent use.
type Guard struct {
	door

	gate   *nethttp.Guard
	inBand *refuser // nil without Config.InBand
}

// Format implements [fmt.Formatter]: it prints nothing of the sockets, which change meanwhile.
func (*Guard) Format(state fmt.State, _ rune) { _, _ = io.WriteString(state, "websocketmw.Guard") }

// New returns a guard. If the Config is invalid, the error joins a [ConfigError] for each
// fault.
func New(c Config) (*Guard, error) {
	gate, err := nethttp.NewForSockets(c.gate())
	if err := c.validate(err); err != nil {
		return nil, err
	}
	c.Rules, c.Inbound = slices.Clone(c.Rules), slices.Clone(c.Inbound)
	if c.ShutdownCode == 0 {
		c.ShutdownCode = frames.CodeGoingAway
	}
	var inBand *refuser
	if c.InBand {
		var err error
		if inBand, err = newRefuser(); err != nil {
			return nil, err
		}
	}
	g := &Guard{door{house: house{c.rules(), fleet.New(c.fleet()), c.Notify}, config: c}, gate, inBand}
	for _, rule := range c.Rules {
		if rule.Slots != nil || rule.LimitSlots != nil {
			g.slotRules = append(g.slotRules, rule)
		}
	}
	return g, nil
}

// Len returns the number of sockets that are open or being opened.
func (g *Guard) Len() int { return g.fleet.Len() }

// Sockets returns the sockets of this guard that hold a slot of the key, of the slots with that
// name. The oldest is first. Use it to close the sockets of a user who logs out. The sockets may
// end at any time, and [Socket.Close] of one that has ended does nothing. The key is the one that
// the rule counts, as [nethttp.Rule].PlanSlots gets it. Sockets looks at all sockets of the guard,
// which takes some milliseconds if there are 100,000.
func (g *Guard) Sockets(slots, key string) (all []*Socket) {
	for _, s := range g.all() {
		if s.Slot().Holds(slots, key) {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b *Socket) int { return a.Since().Compare(b.Since()) })
	return all
}

// Handler returns a handler that calls next for upgrades that get their slots and for
// requests that are not upgrades, and refuses the other upgrades.
//
// Handler panics if the guard or next is nil. It also panics if a key is from the context of a
// framework, which only the middleware of an adapter has.
func (g *Guard) Handler(next http.Handler) http.Handler {
	if g != nil && next == nil {
		panic("headgate: websocketmw: the handler is nil")
	}
	g.Mount(nethttp.Ends | nethttp.Upgrades)
	g.gate.Plain()
	for i, in := range g.config.Inbound {
		if carried.IsRequired(in.Key) {
			panic(fmt.Sprintf("headgate: websocketmw: Inbound[%d].Key is from a framework's context: use the middleware of its adapter", i))
		}
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v := g.Check(r)
		if v.Status() != 0 {
			g.Refuse(w, r, v)
			return
		}
		v.Serve(w, r, next)
	})
}

// Check decides whether a request is admitted. If it is an upgrade, Check charges its rates and
// acquires its slots, under the request's context. It writes nothing.
//
// The caller must call [nethttp.Verdict.Serve] or [nethttp.Verdict.End] on a verdict whose Status is
// 0, because it may hold slots. [Guard.Handler] does all that; Check is for framework
// adapters.
func (g *Guard) Check(r *http.Request) nethttp.Verdict {
	what := classify(r)
	if what == other {
		return nethttp.Pass()
	}
	a := &attempt{door: &g.door, r: r, what: what, handshake: g.fleet.Begin()}
	defer g.fleet.End(&a.handshake)
	return g.gate.CheckFor(r, a)
}

// Mount is for adapters, which call it once, where a guard is mounted, with all that they can do.
// It panics if the guard is nil, or if the adapter has not [nethttp.Ends] and [nethttp.Upgrades].
// It reports whether requests should carry the framework's context during the handshake. They
// should, unless all functions of the Config are known not to use it.
func (g *Guard) Mount(abilities ...nethttp.Ability) (carries bool) {
	if g == nil {
		panic("headgate: websocketmw: the guard is nil: see the error of websocketmw.New")
	}
	if !slices.ContainsFunc(abilities, func(a nethttp.Ability) bool { return a&nethttp.Upgrades != 0 }) {
		panic("headgate: websocketmw: the adapter cannot serve sockets: let it call Verdict.Serve, and Mount(nethttp.Ends | nethttp.Upgrades)")
	}
	carries = g.gate.Mount(abilities...)
	for _, in := range g.config.Inbound {
		carries = carries || !carried.IsUnused(in.Key)
	}
	return carries
}

// Refuse writes the refusal as [nethttp.Guard.Refuse] does, unless [Config].InBand does it. It does
// nothing if the request is admitted.
func (g *Guard) Refuse(w http.ResponseWriter, r *http.Request, v nethttp.Verdict) {
	if v.Status() == 0 || g.inBand.refuse(w, r, v) {
		return
	}
	g.gate.Refuse(w, r, v)
}
