package websocketmw

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/headgate/headgate/internal/carried"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
	"github.com/headgate/headgate/websocketmw/internal/conn"
	"github.com/headgate/headgate/websocketmw/internal/frames"
)

// A Guard decides which upgrades are admitted, and tracks the open sockets. Make one
// with [New]. It is safe for concurrent use.
type Guard struct {
	config    Config
	gate      *nethttp.Guard
	slotRules []nethttp.Rule // those of the rules that take slots

	rules  conn.Rules
	inBand *inBand // nil without Config.InBand
	fleet  *fleet  // nil without Config.Server and EvictOldest

	mu       sync.Mutex
	sockets  map[*Socket]struct{}
	losses   map[<-chan struct{}]*loss
	surplus  surplus
	draining bool
	drained  chan struct{} // closed when draining
	empty    chan struct{} // closed when draining and no socket is left
}

// Format implements [fmt.Formatter]: it prints nothing of the sockets, which change meanwhile.
func (*Guard) Format(state fmt.State, _ rune) { _, _ = io.WriteString(state, "websocketmw.Guard") }

var (
	errEmptyKey = errors.New("its Key returned an empty key without an error")

	errMalformed = errors.New("headgate: websocketmw: the Sec-WebSocket-Key is not the base64 of 16 bytes")
)

// New returns a guard. If the Config is invalid, the error joins a [ConfigError] for each
// fault.
func New(c Config) (*Guard, error) {
	gate, err := nethttp.NewForSockets(c.gate())
	if err := c.validate(err); err != nil {
		return nil, err
	}
	c.Rules, c.Inbound = slices.Clone(c.Rules), slices.Clone(c.Inbound)
	if c.KeyErrorStatus == 0 {
		c.KeyErrorStatus = http.StatusBadRequest
	}
	if c.ShutdownCode == 0 {
		c.ShutdownCode = frames.CodeGoingAway
	}
	var inBand *inBand
	if c.InBand {
		var err error
		if inBand, err = newInBand(); err != nil {
			return nil, err
		}
	}
	g := &Guard{
		config:  c,
		gate:    gate,
		rules:   c.rules(),
		inBand:  inBand,
		sockets: make(map[*Socket]struct{}),
		losses:  make(map[<-chan struct{}]*loss),
		drained: make(chan struct{}),
		empty:   make(chan struct{}),
	}
	for _, rule := range c.Rules {
		if rule.Slots != nil || rule.LimitSlots != nil {
			g.slotRules = append(g.slotRules, rule)
		}
	}
	g.surplus.guard = g
	if c.hasFleet() {
		g.fleet = newFleet(g)
	}
	return g, nil
}

// Len returns the number of sockets that are open or being opened.
func (g *Guard) Len() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.sockets)
}

// Sockets returns the sockets of this guard that hold a slot of the key, of the slots with that
// name, the oldest first: to close them when the user logs out, say. The sockets may end at any
// time, and [Socket.Close] of one that has ended does nothing. The key is the one that the rule
// counts, as [nethttp.Rule].PlanSlots gets it. Sockets looks at all sockets of the guard, which takes some
// milliseconds if there are 100,000.
func (g *Guard) Sockets(slots, key string) (all []*Socket) {
	for _, s := range g.all() {
		if s.slot.Holds(slots, key) {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b *Socket) int { return a.Since().Compare(b.Since()) })
	return all
}

// Handler returns a handler that calls next for upgrades that get their slots and for
// requests that are not upgrades, and refuses the other upgrades.
//
// Handler panics if the guard or next is nil, or if a key is from the context of a framework, which
// only the middleware of an adapter has.
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

// Check decides whether a request is admitted. If it is an upgrade, Check charges its rates and takes
// its slots, under the request's context. It writes nothing.
//
// The caller must call [nethttp.Verdict.Serve] or [nethttp.Verdict.End] on a verdict whose Status is
// 0, because it may hold slots. [Guard.Handler] does all that; Check is for framework
// adapters.
func (g *Guard) Check(r *http.Request) nethttp.Verdict {
	what := classify(r)
	if what == other {
		return nethttp.Pass()
	}
	a := &attempt{guard: g, r: r, what: what}
	if g.fleet != nil {
		handshake := g.fleet.begin()
		defer g.fleet.end(handshake)
		a.start = began(handshake)
	}
	return g.gate.CheckFor(r, a)
}

// Mount is for adapters, which call it once, where a guard is mounted, with all that they can do.
// It panics if the guard is nil, or if the adapter has not [nethttp.Ends] and [nethttp.Upgrades]. It
// reports whether requests should carry the framework's context, as long as the handshake
// lasts: for all functions of the Config, except those that are known not to use it.
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

// keyStatus returns the status of the refusal after an error of a Key.
func (g *Guard) keyStatus(err error) int {
	if errors.Is(err, keyfuncs.ErrProgram) {
		return http.StatusInternalServerError
	}
	return g.config.KeyErrorStatus
}

func (g *Guard) isDraining() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.draining
}

// add reports whether the socket was added: not while draining.
func (g *Guard) add(s *Socket) bool {
	added := g.enter(s)
	if added && s.place != nil && s.place.closes != nil {
		s.Close(s.place.closes.Code, s.place.closes.Reason)
	}
	return added
}

func (g *Guard) enter(s *Socket) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.draining {
		return false
	}
	g.sockets[s] = struct{}{}
	if s.place != nil {
		g.fleet.add(s)
	}
	if g.config.Notify != nil {
		g.watch(s)
	}
	if g.config.OnExcess == Shed && !s.spared {
		g.surplus.add(s)
	}
	return true
}

func (g *Guard) remove(s *Socket) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.sockets, s)
	if s.place != nil {
		g.fleet.remove(s)
	}
	g.unwatch(s.slot.Lost())
	if len(g.sockets) == 0 {
		g.surplus.stop()
	}
	if g.fleet != nil && len(g.sockets) == 0 && g.fleet.handshakes.Len() == 0 {
		g.fleet.rest()
	}
	if g.draining && len(g.sockets) == 0 {
		close(g.empty)
	}
}

// all returns the sockets.
func (g *Guard) all() []*Socket {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := make([]*Socket, 0, len(g.sockets))
	for s := range g.sockets {
		all = append(all, s)
	}
	return all
}

// Shutdown closes all sockets, and refuses upgrades with 503 from then on. It sends each
// socket a Close frame with [Config].ShutdownCode, all at once or spread over
// [Config].Drain, waits until the handlers have closed their sockets, 5 seconds have passed
// or ctx is done, and closes the connections that are left. Then it closes the slots of the rules, so that they are free for other
// servers at once. A slow store may take 5 seconds for that, even if ctx is done.
//
// Call it before [http.Server.Shutdown], which does not close hijacked connections, and
// waits for WebSockets over HTTP/2. The error joins the cause of ctx, if it was done
// first, and the errors of closing the slots. Shutdown may be called again, and waits
// again.
func (g *Guard) Shutdown(ctx context.Context) error {
	g.drain()
	g.closeAll(ctx)
	timer := time.NewTimer(conn.CloseTimeout) // for handlers that neither upgrade nor return
	defer timer.Stop()
	var late error
	select {
	case <-g.empty:
	case <-timer.C:
	case <-ctx.Done():
		late = context.Cause(ctx)
	}
	for _, s := range g.all() {
		s.life.Cut()
	}
	if g.fleet != nil {
		g.mu.Lock()
		g.fleet.rest()
		g.mu.Unlock()
	}
	// ctx limits only the wait: the slots are closed even if it is done.
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), conn.CloseTimeout)
	defer cancel()
	faults := make([]error, len(g.slotRules))
	var all sync.WaitGroup
	for i := range g.slotRules { // at once: the store may be slow
		slots := slotsOf(&g.slotRules[i])
		all.Go(func() { faults[i] = slots.Close(closing) })
	}
	all.Wait()
	return errors.Join(late, errors.Join(faults...))
}

// closeAll begins to close all sockets, in the time of Config.Drain.
func (g *Guard) closeAll(ctx context.Context) {
	all, start := g.all(), time.Now()
	if g.config.Drain > 0 {
		slices.SortFunc(all, func(a, b *Socket) int { return a.Since().Compare(b.Since()) })
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for i, s := range all {
		if at := start.Add(time.Duration(float64(g.config.Drain) * float64(i) / float64(len(all)))); ctx.Err() == nil && time.Until(at) > 0 {
			timer.Reset(time.Until(at))
			select {
			case <-timer.C:
			case <-g.empty:
			case <-ctx.Done():
			}
		}
		s.life.Leave(g.config.ShutdownCode, "the server is shutting down")
	}
}

func (g *Guard) drain() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.draining {
		g.draining = true
		close(g.drained)
		if len(g.sockets) == 0 {
			close(g.empty)
		}
	}
}
