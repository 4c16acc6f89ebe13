package websocketmw

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// maxRules is the number of slots that core.AcquireAll takes together.
const maxRules = 8

// Config is what a Guard is made of. Write it with the names of the fields. The
// functions in it are called by many goroutines at once, and a panic in one passes
// through the guard.
type Config struct {
	_ struct{}

	// Rules are the limits, 1 to 8 of them. A socket takes a slot of each, all or
	// nothing, so they have one store and different names. Put first the one that
	// is most often reached.
	Rules []Rule

	// Skip reports that a request passes without being counted, observed or told
	// about limits. Nil skips nothing.
	Skip func(*http.Request) bool

	// Handshakes limits how often upgrades are tried. It is asked and charged
	// before a slot is taken, and what it refuses it answers itself, so that a client
	// that hammers costs no more than that. Nil: as often as they like.
	Handshakes *nethttp.Guard

	// KeyErrorStatus is the status of an upgrade for which a rule's Key gives an
	// error or an empty key: 400 or 403. 0 means 400.
	KeyErrorStatus int

	// NoFields leaves RateLimit and RateLimit-Policy out.
	NoFields bool

	// InBand has browsers learn why they are refused: they cannot see the status of an
	// upgrade, only that it failed (1006). A refusal with 429 or 503 of a request with
	// an Origin is a 101 then, closed at once with 1013 and a reason like
	//
	//	limit "ws" is reached; retry in 7 s
	//
	// It takes no slot. Beyond 100 a second, and for Handshakes, refusals are plain
	// responses. Whether the origin may connect is not asked before.
	InBand bool

	// OnDenied writes refusals instead of the guard, but not those of Handshakes or
	// InBand.
	// The header has the limit's fields, Retry-After and Cache-Control: no-store
	// already; OnDenied writes the status, which should be the verdict's, and the
	// body. If it writes nothing, the guard does, as if OnDenied were nil.
	OnDenied func(http.ResponseWriter, *http.Request, Verdict)

	// Observe is told each verdict about an upgrade, before anything is written:
	// for logs and metrics.
	Observe func(*http.Request, Verdict)

	// Notify is told what becomes of the sockets. It must not wait.
	Notify func(*Socket, Event)

	// Inbound are limits on what clients send, at most 8. None: as much as they like.
	Inbound []Inbound

	// MaxIdle closes a socket from which nothing has been read for so long, with
	// 1001. Pongs count, so the handler should ping more often, and has to read. It
	// finds peers that vanished behind a proxy that keeps the connection. 0: never.
	MaxIdle time.Duration

	// MaxAge closes a socket that has been open for so long, with 1001: for
	// credentials that expire, and to spread clients over servers. 0: never.
	MaxAge time.Duration

	// OnLost says what becomes of sockets whose slots were lost, see
	// [core.Slot.Lost]. The zero value, [Keep], keeps them.
	OnLost LostAction

	// ShutdownCode is the code with which [Guard.Shutdown] closes sockets: 1001,
	// going away, or 1012, service restart. 0 means 1001.
	ShutdownCode int

	// NoCloseFrames lets the guard close connections without a Close frame: clients
	// see 1006. To send frames the guard follows where those of the handler end,
	// which costs tens of nanoseconds for a write, and a system call more for what
	// a library would write with writev.
	NoCloseFrames bool
}

// A LostAction is what a guard does with a socket whose slot was lost.
type LostAction uint8

const (
	// Keep keeps the socket: for a time there may be more than the limit.
	Keep LostAction = iota
	// Shed closes it with 1013, try again later.
	Shed
)

// A Rule is one limit: who is counted, and by which slots. Write it with the names
// of the fields.
type Rule struct {
	_ struct{}

	// Slots are what a socket takes one of. Required.
	Slots *core.Slots

	// Key says who is counted. Required: there is no default. An upgrade for which
	// it gives an error or an empty key is refused.
	Key keyfuncs.Func

	// Plan chooses other slots for a request: more for those who pay. Make them
	// once, with Slots.With, and look them up here. Nil, the function or what it
	// returns, means Slots; so let that be the smallest plan. Slots of another name or
	// store are a fault of the program, and the upgrade gets a 500.
	Plan func(*http.Request) *core.Slots

	// Service marks the limit as the service's own, as of all sockets together: no
	// client is at fault, so the refusal is a 503, and clients are not told the
	// numbers.
	Service bool
}

// A ConfigError is one thing that is wrong with a Config. [New] joins all of them;
// errors.As finds the first.
type ConfigError struct {
	Field string // as in "Rules[0].Key"
	Err   error  // what is wrong, and what to do instead
}

// Error names the field and what is wrong with it.
func (e *ConfigError) Error() string {
	return "headgate: guard of sockets: " + e.Field + ": " + e.Err.Error()
}

// Unwrap returns Err.
func (e *ConfigError) Unwrap() error { return e.Err }

// faults collects what is wrong.
type faults []error

func (f *faults) add(err error, field string, args ...any) {
	*f = append(*f, &ConfigError{Field: fmt.Sprintf(field, args...), Err: err})
}

// validate returns everything that is wrong.
func (c *Config) validate() error {
	var f faults
	if n := len(c.Rules); n == 0 || n > maxRules {
		f.add(fmt.Errorf("a guard has 1 to %d rules, not %d", maxRules, n), "Rules")
	}
	for i, rule := range c.Rules {
		if rule.Key == nil {
			f.add(errors.New("it is nil: say who is counted, with a function of package keyfuncs"), "Rules[%d].Key", i)
		}
		if rule.Slots == nil {
			f.add(errors.New("it is nil: make them with core.NewSlots"), "Rules[%d].Slots", i)
			continue
		}
		for j, other := range c.Rules[:i] {
			if err := clash(other.Slots, rule.Slots); err != nil {
				f.add(fmt.Errorf("with Rules[%d]: %w", j, err), "Rules[%d].Slots", i)
			}
		}
	}
	if s := c.KeyErrorStatus; s != 0 && s != http.StatusBadRequest && s != http.StatusForbidden {
		f.add(fmt.Errorf("%d is neither 400 nor 403, nor 0 for 400", s), "KeyErrorStatus")
	}
	if n := len(c.Inbound); n > maxRules {
		f.add(fmt.Errorf("a guard has at most %d limits on what clients send, not %d", maxRules, n), "Inbound")
	}
	for i := range c.Inbound {
		c.Inbound[i].validate(&f, i)
	}
	if c.MaxIdle < 0 {
		f.add(fmt.Errorf("%v is negative: 0 means never", c.MaxIdle), "MaxIdle")
	}
	if c.MaxAge < 0 {
		f.add(fmt.Errorf("%v is negative: 0 means never", c.MaxAge), "MaxAge")
	}
	if c.OnLost > Shed {
		f.add(fmt.Errorf("%d is neither Keep nor Shed", c.OnLost), "OnLost")
	}
	if s := c.ShutdownCode; s != 0 && s != codeGoingAway && s != codeRestart {
		f.add(fmt.Errorf("%d is neither 1001 nor 1012, nor 0 for 1001", s), "ShutdownCode")
	}
	return errors.Join(f...)
}

// clash returns the reason why slots cannot be taken together.
func clash(a, b *core.Slots) error {
	switch {
	case a == nil:
		return nil
	case a.Name() == b.Name():
		return fmt.Errorf("both slots are named %q: they would share their counts", a.Name())
	case a.Store() != b.Store():
		return fmt.Errorf("the slots %q and %q have different stores: use one, or a guard for each", a.Name(), b.Name())
	}
	return nil
}
