package websocketmw

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/carried"
	"github.com/headgate/headgate/internal/fault"
	"github.com/headgate/headgate/internal/hidden"
	"github.com/headgate/headgate/internal/occupancy"
	"github.com/headgate/headgate/internal/ontrial"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/limits"
)

// A Guard decides which upgrades are admitted, and tracks the open sockets. Make one
// with [New]. It is safe for concurrent use.
type Guard struct {
	config Config
	bounds bounds
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
	errPlan     = errors.New("its Plan returned slots that were not made with Slots.With")
	errEmptyKey = errors.New("its Key returned an empty key without an error")

	errMalformed = errors.New("headgate: websocketmw: the Sec-WebSocket-Key is not the base64 of 16 bytes")
)

// New returns a guard. If the Config is invalid, the error joins a [ConfigError] for each
// fault.
func New(c Config) (*Guard, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	c.Rules, c.Inbound = slices.Clone(c.Rules), slices.Clone(c.Inbound)
	if c.KeyErrorStatus == 0 {
		c.KeyErrorStatus = http.StatusBadRequest
	}
	if c.ShutdownCode == 0 {
		c.ShutdownCode = codeGoingAway
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
		bounds:  newBounds(&c),
		inBand:  inBand,
		sockets: make(map[*Socket]struct{}),
		losses:  make(map[<-chan struct{}]*loss),
		drained: make(chan struct{}),
		empty:   make(chan struct{}),
	}
	g.surplus.guard = g
	if c.Server != "" || slices.ContainsFunc(c.Rules, func(r Rule) bool { return r.WhenFull == EvictOldest }) {
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
// counts, as [Rule].Plan gets it. Sockets looks at all sockets of the guard, which takes some
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
	g.Mount()
	for i, rule := range g.config.Rules {
		if carried.IsRequired(rule.Key) {
			panic(fmt.Sprintf("headgate: websocketmw: Rules[%d].Key (slots %q) is from a framework's context: use the Sockets of its adapter", i, rule.name()))
		}
	}
	for i, in := range g.config.Inbound {
		if carried.IsRequired(in.Key) {
			panic(fmt.Sprintf("headgate: websocketmw: Inbound[%d].Key is from a framework's context: use the Sockets of its adapter", i))
		}
	}
	if g.config.Handshakes != nil {
		g.config.Handshakes.Handler(http.NotFoundHandler()) // panics if such a key is there
	}
	if next == nil {
		panic("headgate: websocketmw: the handler is nil")
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

// Check decides whether a request is admitted. If it is an upgrade, Check takes its
// slots, under the request's context. It writes nothing.
//
// The caller must call [Verdict.Serve] or [Verdict.Release] on a verdict whose Status is
// 0, because it may hold slots. [Guard.Handler] does all that; Check is for framework
// adapters.
func (g *Guard) Check(r *http.Request) Verdict {
	v := Verdict{guard: g}
	what := classify(r)
	if what == other || g.config.Skip != nil && g.config.Skip(r) {
		v.admitted = true
		return v
	}
	var start time.Time
	if g.fleet != nil {
		handshake := g.fleet.begin()
		defer g.fleet.end(handshake)
		start = began(handshake)
	}
	g.decide(&v, r, what, start)
	v.admitted = v.status == 0
	if !v.admitted {
		v.wait = wait()
	}
	if g.config.Observe != nil {
		g.observe(r, v)
	}
	if g.config.ObserveOnly && v.mayPass() {
		g.spare(r.Context(), &v, what)
	}
	return v
}

// Mount is for adapters, which call it once, where a guard is mounted. It panics if the guard is
// nil. It reports whether requests should carry the framework's context, as long as the handshake
// lasts: for all functions of the Config, except those that are known not to use it.
func (g *Guard) Mount() (carries bool) {
	if g == nil {
		panic("headgate: websocketmw: the guard is nil: see the error of websocketmw.New")
	}
	c := &g.config
	carries = !carried.IsUnused(c.Skip) || c.OnRefused != nil || c.Observe != nil || c.Handshakes != nil && c.Handshakes.Mount()
	for _, in := range c.Inbound {
		carries = carries || !carried.IsUnused(in.Key)
	}
	for _, rule := range c.Rules {
		carries = carries || !carried.IsUnused(rule.Key) || rule.Plan != nil || rule.PlanName != nil
	}
	return carries
}

// spare makes a verdict admit, in shadow mode. What would have been refused has no slot.
func (g *Guard) spare(ctx context.Context, v *Verdict, what kind) {
	if v.socket == nil {
		s := g.newSocket(ctx, what, new(core.Slot), nil)
		if s.place = v.place; s.place != nil { // CloseAll is not in shadow
			s.place.slotless = true
		}
		s.spared.Store(true)
		if !g.add(s) { //nolint:contextcheck // draining meanwhile; sockets outlive the request
			v.Err, v.status = core.ErrClosed, http.StatusServiceUnavailable
			return
		}
		v.socket = s
	}
	v.admitted, v.silent = true, true
}

// observe calls Observe. If that panics, the verdict is never served, so observe
// releases it.
func (g *Guard) observe(r *http.Request, v Verdict) {
	returned := false
	defer func() {
		if !returned {
			v.Release()
		}
	}()
	g.config.Observe(r, v)
	returned = true
}

// decide fills in v. The handshake began at start.
func (g *Guard) decide(v *Verdict, r *http.Request, what kind, start time.Time) {
	if what == malformed {
		v.Err, v.status = errMalformed, http.StatusBadRequest
		return
	}
	if g.isDraining() {
		v.Err, v.status = core.ErrClosed, http.StatusServiceUnavailable
		return
	}
	if g.config.Handshakes != nil {
		h := g.config.Handshakes.Check(r)
		v.handshake = &h
		if v.status = h.Status(); v.status != 0 {
			v.Err = h.Err
			return
		}
	}
	var claims []core.Claim
	if claims, v.status, v.Err = g.claims(r); v.Err != nil {
		return
	}
	if g.fleet != nil {
		v.place = newPlace(start, claims)
	}
	budgets, err := g.config.budgetKeys(r)
	if err != nil {
		v.Err, v.status = err, g.keyStatus(err)
		return
	}
	ctx := r.Context()
	if g.config.ObserveOnly {
		ctx = ontrial.Mark(ctx)
	}
	slot, err := core.AcquireAll(ctx, claims...)
	if err == nil && g.fleet != nil {
		if v.place.evicts, err = g.fleet.makeRoom(r.Context(), claims, slot); err != nil {
			slot.Release()
		}
	}
	if err != nil {
		refuse(v, err, claims)
		return
	}
	v.limits = occupancy.Of(slot)
	s := g.newSocket(r.Context(), what, slot, budgets)
	s.place = v.place
	if !g.add(s) { //nolint:contextcheck // draining since the check above; sockets outlive the request
		slot.Release()
		v.Err, v.status = core.ErrClosed, http.StatusServiceUnavailable
		return
	}
	v.socket = s
}

// claims returns what the rules claim for a request, or the refusal.
func (g *Guard) claims(r *http.Request) (claims []core.Claim, status int, err error) {
	claims = make([]core.Claim, len(g.config.Rules))
	var view limits.View
	for i := range g.config.Rules {
		rule := &g.config.Rules[i]
		k, err := rule.Key(r)
		if err == nil && k == "" {
			err = errEmptyKey
		}
		if err != nil {
			return nil, g.keyStatus(err), rule.fault(i, err)
		}
		var slots *core.Slots
		if rule.Limit != nil {
			slots = rule.fromBook(&view, r, k)
		} else {
			slots, err = rule.slots(r, k)
		}
		if err != nil {
			return nil, http.StatusInternalServerError, rule.fault(i, err)
		}
		claims[i] = core.Claim{Slots: slots, Key: k, OneMore: rule.WhenFull == EvictOldest}
	}
	return claims, 0, nil
}

func (g *Guard) newSocket(ctx context.Context, what kind, slot *core.Slot, budgets []hidden.Text) *Socket {
	return &Socket{
		guard: g, slot: slot, budgets: budgets, stream: what == connect, base: ctx, toClose: make(chan struct{}),
		haste: uint16(rand.Uint32()), //nolint:gosec // no secret
	}
}

// keyStatus returns the status of the refusal after an error of a Key.
func (g *Guard) keyStatus(err error) int {
	if errors.Is(err, keyfuncs.ErrProgram) {
		return http.StatusInternalServerError
	}
	return g.config.KeyErrorStatus
}

// fault says which rule an error is about, never whom.
func (rule *Rule) fault(i int, err error) error {
	return fault.Wrap(fmt.Sprintf("websocketmw: Rules[%d] (slots %q)", i, rule.name()), err)
}

// slots returns the slots of the plan of a request with the key.
func (rule *Rule) slots(r *http.Request, key string) (*core.Slots, error) {
	if rule.Plan == nil {
		return rule.Slots, nil
	}
	s := rule.Plan(r, key)
	switch {
	case s == nil || s == rule.Slots:
		return rule.Slots, nil
	case s.Name() != rule.Slots.Name():
		return nil, fmt.Errorf("%w: they are named %q", errPlan, s.Name())
	case s.Store() != rule.Slots.Store():
		return nil, fmt.Errorf("%w: they have another store", errPlan)
	}
	return s, nil
}

// fromBook returns the slots of a rule with a Limit. The view is that of all rules.
func (rule *Rule) fromBook(view *limits.View, r *http.Request, key string) *core.Slots {
	if *view == (limits.View{}) {
		*view = rule.Limit.Book().View()
	}
	plan := ""
	if rule.PlanName != nil {
		plan = rule.PlanName(r)
	}
	return view.Slots(rule.Limit, plan, key)
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
	if g.config.OnExcess == Shed && !s.spared.Load() {
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
	timer := time.NewTimer(closeTimeout) // for handlers that neither upgrade nor return
	defer timer.Stop()
	var late error
	select {
	case <-g.empty:
	case <-timer.C:
	case <-ctx.Done():
		late = context.Cause(ctx)
	}
	for _, s := range g.all() {
		s.cut()
	}
	if g.fleet != nil {
		g.mu.Lock()
		g.fleet.rest()
		g.mu.Unlock()
	}
	// ctx limits only the wait: the slots are closed even if it is done.
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	faults := make([]error, len(g.config.Rules))
	var all sync.WaitGroup
	for i, rule := range g.config.Rules { // at once: the store may be slow
		_, slots := rule.own()
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
		s.leave(g.config.ShutdownCode, "the server is shutting down")
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
