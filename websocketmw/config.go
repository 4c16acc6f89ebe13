package websocketmw

import (
	"errors"
	"fmt"
	"net/http"
	"time"

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

	// Key returns the key whose sockets are counted. Required: there is no default.
	// If it returns an error or an empty key, the upgrade is refused.
	Key keyfuncs.Func

	// Plan returns other slots for a request, such as more for paying customers. key is
	// the one whose sockets are counted: what Key returned, or the adapter's key in its
	// place. Make the slots in advance with Slots.With; Plan only selects. If Plan is nil
	// or returns nil, Slots apply, so Slots should be the smallest plan. Slots with another
	// name or store are a programming error: the upgrade gets a 500. It is not for a Limit,
	// which has plans.
	Plan func(r *http.Request, key string) *core.Slots

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
	if s := c.KeyErrorStatus; s != 0 && s != http.StatusBadRequest && s != http.StatusForbidden {
		f.add(fmt.Errorf("it is %d: use 400 or 403, or 0 for 400", s), "KeyErrorStatus")
	}
	if n := len(c.Inbound); n > maxRules {
		f.add(fmt.Errorf("there may be at most %d limits, not %d", maxRules, n), "Inbound")
	}
	for i := range c.Inbound {
		c.Inbound[i].validate(&f, i)
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
	if s := c.ShutdownCode; s != 0 && s != codeGoingAway && s != codeRestart {
		f.add(fmt.Errorf("it is %d: use 1001 or 1012, or 0 for 1001", s), "ShutdownCode")
	}
	return errors.Join(f...)
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
