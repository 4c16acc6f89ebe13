package websocketmw

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/nethttp"
)

// A Verdict is a guard's answer to a request. The zero Verdict refuses.
type Verdict struct {
	// Err is why there is no decision: the error of a key function or of the store,
	// core.ErrClosed while the guard shuts down, or what is wrong with the request. It
	// is nil for a refusal by a limit. It is for logs: clients are not told.
	Err error

	guard     *Guard
	handshake *nethttp.Verdict // of Config.Handshakes, if asked
	socket    *Socket          // holds the slots; nil: none
	limits    limits           // what is known, admitted or refused
	status    int              // of the refusal
	wait      int              // Retry-After in seconds
	admitted  bool
}

// limits are the occupancies of the rules, in order. The slots of those of which
// nothing is known have Held -1.
type limits []core.Occupancy

func limitsOf(slot *core.Slot) limits {
	all := limits(slot.Occupancies())
	if slot.Source() == core.SourceOpen { // nobody looked
		all = append(limits(nil), all...)
		for i := range all {
			all[i].Held = -1
		}
	}
	return all
}

// wait is a Retry-After: nobody knows when a socket closes. The jitter keeps those
// who wait from coming back together.
func wait() int {
	const shortest, jitter = 5, 5
	return shortest + rand.IntN(jitter+1) //nolint:gosec // no secret
}

// refuse makes a refusal of an error of core.AcquireAll.
func refuse(v *Verdict, err error, claims []core.Claim) {
	var full *core.FullError
	switch {
	case errors.As(err, &full):
		v.status = http.StatusTooManyRequests
		if v.guard.config.Rules[full.Claim].Service {
			v.status = http.StatusServiceUnavailable
		}
		for i, c := range claims {
			o := core.Occupancy{Slots: c.Slots.Name(), Limit: c.Slots.Limit(c.Key), Held: -1}
			if i == full.Claim {
				o = full.Occupancy
			}
			v.limits = append(v.limits, o)
		}
	case errors.Is(err, core.ErrQuestion):
		v.Err, v.status = err, http.StatusInternalServerError
	default:
		v.Err, v.status = err, http.StatusServiceUnavailable
	}
}

// Status returns 0 if the request may pass, and otherwise the status of the refusal,
// as listed in the package's description, or that of Config.Handshakes.
func (v Verdict) Status() int {
	switch {
	case v.admitted:
		return 0
	case v.status == 0: // the zero Verdict
		return http.StatusServiceUnavailable
	default:
		return v.status
	}
}

// Upgrades reports whether the request is an upgrade that was admitted, and so holds
// slots.
func (v Verdict) Upgrades() bool { return v.socket != nil }

// Handshake returns the verdict of [Config].Handshakes, and false if it was not asked.
func (v Verdict) Handshake() (nethttp.Verdict, bool) {
	if v.handshake == nil {
		return nethttp.Verdict{}, false
	}
	return *v.handshake, true
}

// Full returns how full the slots are that refused, and false if none did.
func (v Verdict) Full() (core.Occupancy, bool) {
	if v.Err == nil && !v.admitted {
		for _, o := range v.limits {
			if o.Held >= 0 {
				return o, true
			}
		}
	}
	return core.Occupancy{}, false
}

// Serve runs the handler for an admitted request. For an upgrade, next gets a writer
// that watches the connection that it takes over, and a request with the [Socket] in
// its context; anything else it gets as it is. Fields of the verdict are set first.
//
// If next panics, Serve closes the connection, and the panic goes on.
func (v Verdict) Serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	s := v.socket
	if s == nil {
		next.ServeHTTP(w, r)
		return
	}
	returned := false
	defer func() { s.handled(!returned) }()
	v.SetFields(w.Header())
	watched := &writer{recorder: recorder{ResponseWriter: w}, socket: s}
	settles := false
	if v.handshake != nil {
		tracked, settle := v.handshake.Track(r)
		if settle != nil {
			r, settles = tracked, true
			defer func() { settle(watched.outcome(returned)) }()
		}
	}
	r = r.WithContext(s.serve(r.Context()))
	if !s.stream {
		watched.own = make(http.Header, 2)
		v.SetFields(watched.own)
	}
	if !s.stream || settles { // otherwise the writer keeps all its methods
		w = watched.wrapped()
	}
	next.ServeHTTP(w, r)
	returned = true
}

// Release gives the slots back that the verdict holds. It is for those who do not
// serve it, and does nothing if there are none, or any more.
func (v Verdict) Release() {
	if v.socket != nil {
		v.socket.end()
	}
}

// SetFields sets what the verdict means for the header of the response: RateLimit
// and RateLimit-Policy for each rule, with those of Config.Handshakes before them, and
// for a refusal Retry-After and Cache-Control: no-store. Fields that are there stay.
func (v Verdict) SetFields(h http.Header) {
	if v.handshake != nil {
		v.handshake.SetFields(h)
		if v.handshake.Status() != 0 {
			return
		}
	}
	if len(v.limits) > 0 && !v.guard.config.NoFields {
		v.setLimits(h)
	}
	switch v.Status() {
	case 0:
		return
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		h.Set("Retry-After", strconv.Itoa(v.wait))
	}
	h.Set("Cache-Control", "no-store")
}

// setLimits writes the fields of draft-ietf-httpapi-ratelimit-headers-11.
func (v Verdict) setLimits(h http.Header) {
	var policies, states string
	for i, o := range v.limits {
		if v.guard.config.Rules[i].Service || o.Limit == core.NoLimit {
			continue
		}
		name := strconv.Quote(o.Slots) // printable ASCII: the same in RFC 9651
		policies = list(policies, fmt.Sprintf(`%s;q=%d;qu="concurrent-requests"`, name, o.Limit))
		if o.Held >= 0 {
			states = list(states, fmt.Sprintf(`%s;r=%d`, name, o.Remaining()))
		}
	}
	if policies != "" {
		h["Ratelimit-Policy"] = append(h["Ratelimit-Policy"], policies)
	}
	if states != "" {
		h["Ratelimit"] = append(h["Ratelimit"], states)
	}
}

func list(items, item string) string {
	if items == "" {
		return item
	}
	return items + ", " + item
}

// Problem returns the body of the refusal, a problem document (RFC 9457). Where a
// limit of clients is reached it is of the type quota-exceeded of
// draft-ietf-httpapi-ratelimit-headers-11 and names the limit; otherwise it says no
// more than the status does. It is nil if the verdict admits.
func (v Verdict) Problem() []byte {
	status := v.Status()
	switch o, full := v.Full(); {
	case status == 0:
		return nil
	case v.handshake != nil && v.handshake.Status() != 0:
		return v.handshake.Problem()
	case full && status == http.StatusTooManyRequests:
		return nethttp.Problem(status, o.Slots)
	}
	return nethttp.Problem(status)
}
