// The Config, and what it means to the rooms below: rules for connections, and a config for the fleet.
// It owns nothing that changes, and may not touch a socket.

package websocketmw

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/store"
	"github.com/headgate/headgate/nethttp"
	"github.com/headgate/headgate/websocketmw/internal/conn"
	"github.com/headgate/headgate/websocketmw/internal/fleet"
	"github.com/headgate/headgate/websocketmw/internal/frames"
)

const (
	maxInbound = 8  // limits of Config.Inbound
	maxServer  = 64 // bytes of Config.Server
)

// Config configures a [Guard]. Its functions are called from many goroutines at once;
// a panic in one of them propagates through the guard.
type Config struct {
	_ struct{} // composite literals must name the fields

	// Rules are the limits, as in [nethttp.Config]. There are 1 to 8 rules for slots; a socket
	// holds a slot of each. There may be as many rules for rates, which charge upgrades, for
	// example per address and minute. The rates are asked first, so a client over its rate takes no
	// slot and closes no other's socket. If there is no slot then, the units are given back. To limit
	// how often clients try, see the package documentation.
	Rules []nethttp.Rule

	// Wait is the longest time that an upgrade waits for slots of rules that have a Queue, and is
	// set if there are any. Clients may give up earlier.
	Wait time.Duration

	// Skip is as in [nethttp.Config], for upgrades.
	Skip func(*http.Request) bool

	// Fields, NoFields, Observe, OnSettled and OnRefused are as in [nethttp.Config]. OnRefused is not
	// called for refusals by InBand.
	Fields    nethttp.Fields
	NoFields  bool
	OnRefused func(http.ResponseWriter, *http.Request, nethttp.Verdict)
	Observe   func(*http.Request, nethttp.Verdict)
	OnSettled func(r *http.Request, uncovered int64, err error)

	// InBand gives browsers the reason for a refusal. A script cannot see the status of a failed
	// upgrade, only that it failed (1006). With InBand, a request that has an Origin is not refused
	// with 429 or 503. Instead it gets a 101, followed at once by a Close frame with 1013 and a
	// reason such as
	//
	//	limit "ws" is reached; retry in 7 s
	//
	// It takes no slot. Refusals by rates are ordinary responses. So are refusals beyond 100 a
	// second. So are refusals of a key of the refusing rule, beyond one a second after a burst of
	// 10. The Origin is not checked first.
	//
	// A script sees the event open before the event close. Libraries that reconnect take that for a
	// success and start their pauses anew. They should do so only when a message has arrived. After
	// a 1013 they should wait at least as long as the reason says.
	InBand bool

	// Logger gets a record at level WARN of a fault of configuration, once for each kind. One kind
	// is that no request of a rule has had a key for a minute. The other is that the key is a
	// proxy's address, which all clients share. Without Observe, it also gets the reason why
	// handshakes are refused without a decision. For each reason it gets at most one record a
	// minute. No record has a key. Nil means [slog.Default]; slog.New(slog.DiscardHandler) turns it
	// off.
	Logger *slog.Logger

	// Notify is called with the events of sockets. It must not block.
	Notify func(*Socket, Event)

	// ObserveOnly is shadow mode, for trying limits before they are enforced. Sockets take slots
	// where there are any. Observe gets the verdicts and Notify the events as they would have been.
	// But Check admits every upgrade, without fields, and the guard neither closes nor delays
	// sockets. A socket that would have been closed is not limited any more. Nor is a socket that
	// would have been refused, which has the zero [core.Slot].
	//
	// Shutdown and [Socket.Close] do what they always do.
	ObserveOnly bool

	// Inbound limits the messages of clients: at most 8 limits. Without one, only control frames
	// are limited, see [Controls].
	Inbound []Inbound

	// Outbound limits how far a client may fall behind in reading: one that does is closed with
	// 1008. The zero value sets no limit.
	Outbound Outbound

	// MaxIdle closes a socket with 1001 if nothing has been read from it for this long. Everything
	// counts, pongs and the client's own pings too. So the handler should ping more often than
	// that, and must read. MaxIdle finds vanished peers behind a proxy that keeps the connection
	// open. It is no limit on present peers, who may keep a socket with a ping from time to time,
	// within [Controls]. 0 means never.
	MaxIdle time.Duration

	// MaxAge closes a socket with 1001 once it has been open for this long or, at random, for up to
	// a tenth less. So sockets that were opened together are not closed together. It is for
	// credentials that expire, and to spread clients over servers. 0 means never.
	MaxAge time.Duration

	// EvictCode and EvictReason are for the Close frame of a socket that [EvictOldest] closes. They
	// are a code as of [Socket.Close], and at most 123 bytes of UTF-8. 0 and empty mean 1008 and
	// "another socket has taken the place of this one". A client that opens its socket again after
	// that takes the place of another in turn: make it ask its user first.
	EvictCode   int
	EvictReason string

	// OnExcess is how the guard treats surplus sockets. There is a surplus if a shared store was
	// away when sockets were admitted, or has lost its counts (see [core.Slot.Doubt]). The zero
	// value is [Keep].
	OnExcess ExcessAction

	// Server names this server to others, in a [Peer]: 1 to 64 bytes of UTF-8, such as the name of
	// a host. [Guard.Presence] and [Guard.CloseAll] need it. Over Redis, the guard then looks for
	// notices of other servers 4 times a second, from the first handshake until no socket is left.
	// A socket takes some 250 bytes more for each rule. If Server is empty, there is none of that.
	Server string

	// ShutdownCode is the code with which [Guard.Shutdown] closes sockets: 1001
	// (going away) or 1012 (service restart). 0 means 1001.
	ShutdownCode int

	// Drain is the time over which [Guard.Shutdown] spreads the closing of sockets, the oldest
	// first. So the clients do not all come back at once to the servers that are left. Meanwhile
	// upgrades are refused with 503. 0 means all at once.
	Drain time.Duration

	// NoCloseFrames makes the guard close connections without a Close frame: clients see 1006. To
	// send Close frames, the guard tracks where the handler's frames end. That costs tens of
	// nanoseconds per write, and one more system call where a library would use writev.
	NoCloseFrames bool
}

// EvictOldest is a WhenFull of a [nethttp.Rule]. Use it only for keys that authentication gives to
// one person, never for addresses or tenants. Whoever shares the key can close everyone's sockets.
//
// It admits the socket, and closes the oldest socket of the key, on whichever server that is. The
// slot passes to the new socket. So a user whose five devices have vanished without a word can use
// a sixth. The guard looks for the oldest socket before it answers the handshake. It closes that
// socket only when a 101 has been written. If the handler refuses the upgrade, nothing is closed.
// Libraries check the Origin there; without that check any page on the web could close its
// visitor's sockets. The socket is refused nevertheless if
//
//   - no socket of the key is older than 10 seconds,
//   - another one is just taking the place of the oldest: one at a time does so,
//   - or the key holds more than its limit, as it may after that was lowered.
//
// A server that has not answered within a second is left out of the search. So are sockets of other
// rules and guards that hold slots of the same name. If the server with the oldest socket does not
// answer then within 2 seconds, the new socket is closed with 1013 and [EventShed]. While this
// lasts, the key holds one slot more than its limit.
//
// It is for one rule of a guard, which has neither Service nor Queue. As with [Config].Server, the
// guard looks for notices of other servers 4 times a second, and all servers need the rule.
const EvictOldest = nethttp.EvictOldest

// An ExcessAction is how a guard treats surplus sockets.
type ExcessAction uint8

const (
	// Keep keeps them: a key may have more sockets than its limit until enough of them end.
	// It gets no others meanwhile.
	Keep ExcessAction = iota
	// Shed closes surplus sockets with 1013 (try again later), the newest of this server first. All
	// servers together close no more than the surplus, and none because a limit was lowered. When
	// the store answers again, the guard examines all its sockets, or the sockets that were
	// admitted without the store. That takes 10 seconds, or as long as the store needs. The guard
	// closes each socket whose slot [core.Slot.Shed] has released.
	Shed
)

// validate returns all errors in the Config, joined, with those of what the guard of package nethttp
// has of it.
func (c *Config) validate(gate error) error {
	var f faults
	if all, ok := gate.(interface{ Unwrap() []error }); ok {
		f = all.Unwrap()
	}
	c.validateEviction(&f)
	if n := len(c.Inbound); n > maxInbound {
		f.add(fmt.Errorf("there may be at most %d limits, not %d", maxInbound, n), "Inbound")
	}
	for i := range c.Inbound {
		c.Inbound[i].validate(&f, i)
	}
	c.Outbound.validate(&f)
	if c.MaxIdle < 0 {
		f.add(fmt.Errorf("it is %v: it must not be negative, and 0 means never", c.MaxIdle), "MaxIdle")
	}
	if c.MaxAge < 0 {
		f.add(fmt.Errorf("it is %v: it must not be negative, and 0 means never", c.MaxAge), "MaxAge")
	}
	if c.Drain < 0 {
		f.add(fmt.Errorf("it is %v: it must not be negative, and 0 means all at once", c.Drain), "Drain")
	}
	if c.OnExcess > Shed {
		f.add(fmt.Errorf("it is %d: use Keep or Shed", c.OnExcess), "OnExcess")
	}
	if n := len(c.Server); n > maxServer || !utf8.ValidString(c.Server) {
		f.add(fmt.Errorf("it has %d bytes: it must be UTF-8 of at most %d", n, maxServer), "Server")
	}
	if s := c.ShutdownCode; s != 0 && s != frames.CodeGoingAway && s != frames.CodeRestart {
		f.add(fmt.Errorf("it is %d: use 1001 or 1012, or 0 for 1001", s), "ShutdownCode")
	}
	c.validateFleet(&f)
	return errors.Join(f...)
}

// validateEviction finds errors in what is to be done when a key is full.
func (c *Config) validateEviction(f *faults) {
	if !c.evicts() {
		if c.EvictCode != 0 {
			f.add(errors.New("it is for EvictOldest, which no rule has"), "EvictCode")
		}
		if c.EvictReason != "" {
			f.add(errors.New("it is for EvictOldest, which no rule has"), "EvictReason")
		}
		return
	}
	if c.EvictCode != 0 && !frames.Sendable(c.EvictCode) {
		f.add(fmt.Errorf("it is %d: use 1000 to 1003, 1007 to 1014 or 3000 to 4999, or 0 for 1008", c.EvictCode), "EvictCode")
	}
	if n := len(c.EvictReason); n > frames.MaxReason || !utf8.ValidString(c.EvictReason) {
		f.add(fmt.Errorf("it has %d bytes: it must be UTF-8 of at most %d", n, frames.MaxReason), "EvictReason")
	}
}

// evicts reports whether a rule has EvictOldest.
func (c *Config) evicts() bool {
	return slices.ContainsFunc(c.Rules, func(r nethttp.Rule) bool { return r.WhenFull == EvictOldest })
}

// hasFleet reports whether sockets are to be found on all servers.
func (c *Config) hasFleet() bool {
	return c.Server != "" || c.evicts()
}

// validateFleet finds stores through which no server can be told to close sockets.
func (c *Config) validateFleet(f *faults) {
	if !c.hasFleet() {
		return
	}
	for i := range c.Rules {
		slots, field := slotsOf(&c.Rules[i]), "Slots"
		if slots == nil {
			continue
		}
		if c.Rules[i].LimitSlots != nil {
			field = "LimitSlots"
		}
		if _, ok := slots.Store().(store.Noticer); !ok {
			f.add(fmt.Errorf("a %T sends no notices, which Server and EvictOldest need: let it implement store.Noticer", slots.Store()), "Rules[%d].%s", i, field)
		}
	}
}

// gate returns what the guard of package nethttp does.
func (c *Config) gate() nethttp.Config {
	return nethttp.Config{
		Rules: c.Rules, Wait: c.Wait, Skip: c.Skip,
		Fields: c.Fields, NoFields: c.NoFields, OnRefused: c.OnRefused, Observe: c.Observe, OnSettled: c.OnSettled,
		ObserveOnly: c.ObserveOnly, Logger: c.Logger,
	}
}

// rules returns what all connections have in common.
func (c *Config) rules() conn.Rules {
	r := conn.Rules{
		ObserveOnly: c.ObserveOnly, NoFollowing: c.NoCloseFrames, MaxIdle: c.MaxIdle, MaxAge: c.MaxAge,
		Timeout: c.Outbound.Timeout, MaxUnsent: c.Outbound.MaxUnsent,
	}
	units := [...]frames.Unit{Messages: frames.Messages, Frames: frames.Frames, Bytes: frames.Bytes, Controls: frames.Controls}
	overs := [...]conn.Over{Close: conn.Close, Delay: conn.Delay, Report: conn.Report}
	bounds := make([]conn.Bound, len(c.Inbound))
	for i, in := range c.Inbound {
		bounds[i] = conn.Bound{Limiter: in.Limiter, Unit: units[in.Unit], Over: overs[in.Over]}
	}
	r.Bind(bounds)
	return r
}

// boards returns the slots whose sockets are to be found on all servers.
func (c *Config) boards() (boards []*core.Slots) {
	if !c.hasFleet() {
		return nil
	}
	for i := range c.Rules {
		if slots := slotsOf(&c.Rules[i]); slots != nil {
			boards = append(boards, slots)
		}
	}
	return boards
}

// fleet returns what the sockets of the guard have to do with others.
func (c *Config) fleet() fleet.Config {
	const reason = "another socket has taken the place of this one"
	return fleet.Config{
		Server: c.Server, Boards: c.boards(), EvictCode: cmp.Or(c.EvictCode, frames.CodePolicy), EvictReason: cmp.Or(c.EvictReason, reason),
		ObserveOnly: c.ObserveOnly, Shed: c.OnExcess == Shed, TellsLost: c.Notify != nil,
	}
}

// slotsOf returns the slots of a rule that apply unless there is a plan, as of now.
func slotsOf(rule *nethttp.Rule) *core.Slots {
	if rule.LimitSlots != nil {
		return rule.LimitSlots.Book().View().DefaultSlots(rule.LimitSlots)
	}
	return rule.Slots
}
