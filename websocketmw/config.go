package websocketmw

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/occupancy"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/limits"
	"github.com/headgate/headgate/nethttp"
)

// maxRules is the most slots that core.AcquireAll takes together. Config.Inbound has
// the same maximum.
const maxRules = 8

// Config configures a [Guard]. Its functions are called from many goroutines at once;
// a panic in one of them propagates through the guard.
type Config struct {
	_ struct{} // composite literals must name the fields

	// Rules are the limits, 1 to 8 of them. A socket takes one slot of each rule, all
	// or none, so the slots have different names and one store, except that a limit of this
	// process alone may have a memstore beside the store that all share. Put the limit that
	// is reached most often first.
	Rules []Rule

	// Skip reports whether a request passes uncounted, unobserved and without
	// RateLimit fields. Nil skips nothing.
	Skip func(*http.Request) bool

	// Handshakes limits the rate of upgrade attempts. It is checked and charged
	// before any slot is taken, and writes its own refusals, so a client that keeps
	// retrying costs no more than that check. Nil means no limit.
	Handshakes *nethttp.Guard

	// KeyErrorStatus is the status of the refusal if a rule's Key returns an error or
	// an empty key: 400 or 403. 0 means 400. It is not used for [keyfuncs.ErrProgram],
	// which has status 500.
	KeyErrorStatus int

	// NoFields omits the fields RateLimit and RateLimit-Policy.
	NoFields bool

	// InBand gives browsers the reason for a refusal. A script cannot see the status
	// of a failed upgrade, only that it failed (1006). With InBand, a refusal with 429
	// or 503 of a request that has an Origin is a 101 followed at once by a Close
	// frame with 1013 and a reason such as
	//
	//	limit "ws" is reached; retry in 7 s
	//
	// It takes no slot. Refusals beyond 100 a second, or for the key of the rule that refuses
	// beyond one a second after a burst of 10, and those of Handshakes, are ordinary responses.
	// The Origin is not checked first.
	//
	// A script sees the event open before the event close. Libraries that reconnect take
	// that for a success and start their pauses anew: they should do so only when a message
	// has arrived, and after a 1013 wait at least as long as the reason says.
	InBand bool

	// OnRefused writes refusals in place of the guard, except those of Handshakes and
	// InBand. RateLimit fields, Retry-After and Cache-Control: no-store are already in
	// the header; OnRefused writes the status, which should be Verdict.Status, and the
	// body. If it writes no final status, the guard responds as if OnRefused were nil.
	OnRefused func(http.ResponseWriter, *http.Request, Verdict)

	// Observe is called with each verdict about an upgrade, before anything is
	// written: for logs and metrics.
	Observe func(*http.Request, Verdict)

	// Logger gets a record at level WARN of a fault of configuration, once for each kind: no request
	// of a rule has had a key for a minute, or the key is the address of a proxy, behind which all
	// clients share it. No record has a key. Nil means [slog.Default];
	// slog.New(slog.DiscardHandler) turns it off.
	Logger *slog.Logger

	// Notify is called with the events of sockets. It must not block.
	Notify func(*Socket, Event)

	// ObserveOnly is shadow mode, for trying limits before they are enforced. Sockets take
	// slots where there are any. Observe gets the verdicts and Notify the events as they would
	// have been, but Check admits every upgrade, without fields, and the guard neither closes
	// nor delays sockets. One that would have been closed is not limited any more, nor is one
	// that would have been refused, which has the zero [core.Slot].
	//
	// Handshakes has an ObserveOnly of its own. Shutdown and [Socket.Close] do what they always
	// do.
	ObserveOnly bool

	// Inbound limits what clients send: at most 8 limits. Without one, only control
	// frames are limited, see [Controls].
	Inbound []Inbound

	// Outbound limits how far a client may fall behind in reading: one that does is closed with
	// 1008. The zero value sets no limit.
	Outbound Outbound

	// MaxIdle closes a socket with 1001 if nothing has been read from it for this
	// long. Everything counts, pongs and the client's own pings too, so the handler
	// should ping more often than that, and must read. It finds vanished peers behind a
	// proxy that keeps the connection open; it is no limit on peers that are there, who
	// may keep a socket with a ping from time to time, but not with more than [Controls]
	// admits. 0 means never.
	MaxIdle time.Duration

	// MaxAge closes a socket with 1001 once it has been open for this long or, at random, for
	// up to a tenth less: sockets that were opened together are not closed together. It is for
	// credentials that expire, and to spread clients over servers. 0 means never.
	MaxAge time.Duration

	// OnExcess is what the guard does with sockets that are too many, because a shared store
	// was away when they were admitted, or has lost what it had counted (see
	// [core.Slot.Doubt]). The zero value is [Keep].
	OnExcess ExcessAction

	// Server names this server to others, in a [Peer]: 1 to 64 bytes of UTF-8, such as the name
	// of a host. It makes [Guard.Presence] and [Guard.CloseAll] work: over Redis, the guard
	// then looks for notices of other servers 4 times a second, from its first socket until
	// [Guard.Shutdown], and a socket takes some 250 bytes more for each rule. If Server is
	// empty, there is none of that.
	Server string

	// ShutdownCode is the code with which [Guard.Shutdown] closes sockets: 1001
	// (going away) or 1012 (service restart). 0 means 1001.
	ShutdownCode int

	// Drain is the time over which [Guard.Shutdown] spreads the closing of sockets, the oldest
	// first, so that the clients do not all come back at once to the servers that are left.
	// Meanwhile upgrades are refused with 503. 0 means all at once.
	Drain time.Duration

	// NoCloseFrames makes the guard close connections without a Close frame: clients
	// see 1006. To send Close frames, the guard tracks where the handler's frames end,
	// which costs tens of nanoseconds per write, and one more system call where a
	// library would use writev.
	NoCloseFrames bool
}

// WhenFull is what becomes of a socket for whose key there is no slot.
type WhenFull uint8

const (
	// Refuse refuses it.
	Refuse WhenFull = iota

	// EvictOldest is only for keys that authentication gives to one person, never for
	// addresses or tenants: whoever shares the key can close everyone's sockets.
	//
	// It admits the socket, and closes the oldest of the key, on whichever server that is, whose
	// slot passes to the new one: so a user whose five devices have vanished without a word
	// can use a sixth. Which is the oldest is asked before the handshake is answered, and it
	// is closed only when that is: with a status of 101, written. If the handler refuses the
	// upgrade, nothing is closed. Libraries check the Origin there; without that check any page
	// on the web could close its visitor's sockets. The socket is refused nevertheless if
	//
	//   - no socket of the key is older than 10 seconds,
	//   - another one is just taking the place of the oldest: one at a time does so,
	//   - or the key holds more than its limit, as it may after that was lowered.
	//
	// A server that has not answered within a second is left out of the search, and so are those
	// of other rules and guards that take slots of the same name. If the server with the oldest
	// socket does not answer then within 2 seconds, the new socket is closed with 1013 and
	// [EventShed]. While this lasts, the key holds one slot more than its limit.
	//
	// It is for one rule of a guard, which is no Service. As with [Config].Server, the guard
	// looks for notices of other servers 4 times a second, and all servers need the rule.
	EvictOldest
)

// An ExcessAction is what a guard does with sockets that are too many.
type ExcessAction uint8

const (
	// Keep keeps them: a key may have more sockets than its limit until enough of them end.
	// It gets no others meanwhile.
	Keep ExcessAction = iota
	// Shed closes as many as are too many with 1013 (try again later), the newest of this
	// server first: in all servers together no more than that, and none because a limit was
	// lowered. When the store answers again, the guard looks at all its sockets, or at those
	// that were admitted without the store, within 10 seconds or as long as the store needs,
	// and closes those that [core.Slot.Shed] has released.
	Shed
)

// A Rule is one limit: whom it counts, and the slots it takes.
type Rule struct {
	_ struct{} // composite literals must name the fields

	// Slots are the slots of which each socket takes one. Required, unless there is a Limit.
	Slots *core.Slots

	// Limit, in the place of Slots, has the slots of a document: those of the request's
	// PlanName and key. All rules of a guard that have a Limit need one [limits.Book], whose
	// document they get at the same instant.
	Limit *limits.Slots

	// PlanName returns the name of a request's plan, for Limit. If PlanName is nil or returns
	// an empty name, the document's default applies, as it does for a plan that the document
	// does not have.
	PlanName func(*http.Request) string

	// Key returns the key whose sockets are counted. Required: there is no default. If it returns an
	// error or an empty key, the upgrade is refused.
	Key keyfuncs.Func

	// Plan returns other slots for a request, such as more for paying customers. key is
	// the one whose sockets are counted. Make the slots in advance with Slots.With; Plan only
	// selects. If Plan is nil or returns nil, Slots apply, so Slots should be the smallest
	// plan. Slots with another name or store are a programming error: the upgrade gets a 500.
	// It is not for a Limit, which has plans.
	Plan func(r *http.Request, key string) *core.Slots

	// WhenFull says what becomes of a socket for which there is no slot. The zero value is
	// [Refuse].
	WhenFull WhenFull

	// EvictCode and EvictReason are for the Close frame of a socket that [EvictOldest] closes:
	// a code as of [Socket.Close], and at most 123 bytes of UTF-8. 0 and empty mean 1008 and
	// "another socket has taken the place of this one". A client that opens its socket again
	// after that takes the place of another in turn: make it ask its user first.
	EvictCode   int
	EvictReason string

	// Service marks a limit of the service, such as one on all sockets together. The
	// client is not at fault, so the refusal is a 503, and the response does not
	// show the limit.
	Service bool
}

// A ConfigError is one error in a Config. [New] joins all of them; errors.As finds the
// first.
type ConfigError struct {
	Field string // such as "Rules[0].Key"
	Err   error  // what is wrong, and what to do about it
}

// Error returns the field and what is wrong with it.
func (e *ConfigError) Error() string {
	return "headgate: websocketmw: " + e.Field + ": " + e.Err.Error()
}

// Unwrap returns Err.
func (e *ConfigError) Unwrap() error { return e.Err }

// faults collects the errors in a Config.
type faults []error

func (f *faults) add(err error, field string, args ...any) {
	*f = append(*f, &ConfigError{Field: fmt.Sprintf(field, args...), Err: err})
}

// validate returns all errors in the Config, joined.
func (c *Config) validate() error {
	var f faults
	c.validateRules(&f)
	if s := c.KeyErrorStatus; s != 0 && s != http.StatusBadRequest && s != http.StatusForbidden {
		f.add(fmt.Errorf("it is %d: use 400 or 403, or 0 for 400", s), "KeyErrorStatus")
	}
	if n := len(c.Inbound); n > maxRules {
		f.add(fmt.Errorf("there may be at most %d limits, not %d", maxRules, n), "Inbound")
	}
	for i := range c.Inbound {
		c.Inbound[i].validate(&f, i)
	}
	if d := c.Outbound.Timeout; d < 0 {
		f.add(fmt.Errorf("it is %v: it must not be negative, and 0 means never", d), "Outbound.Timeout")
	}
	if n := c.Outbound.MaxUnsent; n < 0 {
		f.add(fmt.Errorf("it is %d: it must not be negative, and 0 means that writes wait", n), "Outbound.MaxUnsent")
	}
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
	if s := c.ShutdownCode; s != 0 && s != codeGoingAway && s != codeRestart {
		f.add(fmt.Errorf("it is %d: use 1001 or 1012, or 0 for 1001", s), "ShutdownCode")
	}
	c.validateFleet(&f)
	return errors.Join(f...)
}

func (c *Config) validateRules(f *faults) {
	if n := len(c.Rules); n == 0 || n > maxRules {
		f.add(fmt.Errorf("there must be 1 to %d rules, not %d", maxRules, n), "Rules")
	}
	for i, rule := range c.Rules {
		if rule.Key == nil {
			f.add(errors.New("it is nil: use a function of package keyfuncs"), "Rules[%d].Key", i)
		}
		field, slots := rule.own()
		switch {
		case rule.Limit != nil && rule.Slots != nil:
			f.add(errors.New("there are Slots too: remove one of them"), "Rules[%d].Limit", i)
		case rule.Limit != nil && rule.Plan != nil:
			f.add(errors.New("the plans are those of the document: remove it, or use PlanName"), "Rules[%d].Plan", i)
		case rule.Limit == nil && rule.PlanName != nil:
			f.add(errors.New("it is for Limit: remove it, or use Plan"), "Rules[%d].PlanName", i)
		}
		rule.validateEviction(f, i, c.Rules[:i])
		if slots == nil {
			f.add(errors.New("they are nil: make them with core.NewSlots"), "Rules[%d].Slots", i)
			continue
		}
		for j, other := range c.Rules[:i] {
			_, beside := other.own()
			if err := occupancy.Clash(beside, slots); err != nil {
				f.add(fmt.Errorf("with Rules[%d]: %w", j, err), "Rules[%d].%s", i, field)
			}
			if rule.Limit != nil && other.Limit != nil && rule.Limit.Book() != other.Limit.Book() {
				f.add(fmt.Errorf("with Rules[%d]: the limits are of different books", j), "Rules[%d].Limit", i)
			}
		}
	}
}

// validateEviction finds errors in what is to be done when a key is full.
func (rule *Rule) validateEviction(f *faults, i int, before []Rule) {
	if rule.WhenFull > EvictOldest {
		f.add(fmt.Errorf("it is %d: use Refuse or EvictOldest", rule.WhenFull), "Rules[%d].WhenFull", i)
	}
	if rule.WhenFull != EvictOldest {
		if rule.EvictCode != 0 || rule.EvictReason != "" {
			f.add(errors.New("there is an EvictCode or EvictReason for EvictOldest, which it is not"), "Rules[%d].WhenFull", i)
		}
		return
	}
	if rule.Service {
		f.add(errors.New("a limit of the service is of many people, who would close each other's sockets: use Refuse"), "Rules[%d].WhenFull", i)
	}
	if slices.ContainsFunc(before, func(r Rule) bool { return r.WhenFull == EvictOldest }) {
		f.add(errors.New("another rule has EvictOldest: one of a guard may"), "Rules[%d].WhenFull", i)
	}
	if rule.EvictCode != 0 && !sendable(rule.EvictCode) {
		f.add(fmt.Errorf("it is %d: use 1000 to 1003, 1007 to 1014 or 3000 to 4999, or 0 for 1008", rule.EvictCode), "Rules[%d].EvictCode", i)
	}
	if n := len(rule.EvictReason); n > maxReason || !utf8.ValidString(rule.EvictReason) {
		f.add(fmt.Errorf("it has %d bytes: it must be UTF-8 of at most %d", n, maxReason), "Rules[%d].EvictReason", i)
	}
}

// own returns the field of the rule that is its limit, and the slots that apply unless there
// is a plan, as of now.
func (rule *Rule) own() (field string, s *core.Slots) {
	if rule.Limit != nil {
		return "Limit", rule.Limit.Book().View().DefaultSlots(rule.Limit)
	}
	return "Slots", rule.Slots
}

// name returns the name of the slots.
func (rule *Rule) name() string {
	if rule.Limit != nil {
		return rule.Limit.Name()
	}
	return rule.Slots.Name()
}
