// An attempt is one upgrade while it is decided about: it owns what is known of it then, and opens the
// socket. It may not take a lock or touch a connection.

package websocketmw

import (
	"errors"
	"net/http"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/hidden"
	"github.com/headgate/headgate/internal/holds"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
	"github.com/headgate/headgate/websocketmw/internal/fleet"
)

var (
	errMalformed = errors.New("headgate: websocketmw: the Sec-WebSocket-Key is not the base64 of 16 bytes")
	errHTTP2     = errors.New("headgate: websocketmw: a WebSocket over HTTP/2: open it over HTTP/1.1")
)

// A door is what the attempts at a guard have in common.
type door struct {
	house

	config    Config
	slotRules []nethttp.Rule // those of the rules that take slots
}

// An attempt is an upgrade that the guard decides about. What it does is called by the guard of
// package nethttp, which has the rules.
type attempt struct {
	door      *door
	r         *http.Request
	what      kind
	handshake fleet.Handshake

	socket  *Socket // nil: none was admitted
	budgets []hidden.Text

	inBand bool        // the refusal may be in band
	share  hidden.Text // the key of the client whose limit refused, if one did
}

// Begin implements [holds.Attempt].
func (a *attempt) Begin() (status int, err error) {
	switch {
	case a.what == connect:
		return http.StatusNotImplemented, errHTTP2
	case a.what == malformed:
		return http.StatusBadRequest, errMalformed
	case a.door.fleet.Draining():
		a.inBand = true
		return http.StatusServiceUnavailable, core.ErrClosed
	}
	return 0, nil
}

// Claim implements [holds.Attempt].
func (a *attempt) Claim(claims []core.Claim) (status int, err error) {
	a.door.fleet.Claim(&a.handshake, claims)
	a.budgets, err = budgetKeys(a.door.config.Inbound, a.r)
	switch {
	case errors.Is(err, keyfuncs.ErrProgram):
		return http.StatusInternalServerError, err
	case err != nil:
		return http.StatusBadRequest, err
	}
	return 0, nil
}

// Hold implements [holds.Attempt].
func (a *attempt) Hold(claims []core.Claim, slot *core.Slot) (holds.Held, error) {
	if err := a.door.fleet.MakeRoom(a.r.Context(), &a.handshake, claims, slot); err != nil {
		return nil, err
	}
	return a.open(slot, a.budgets, false)
}

// Refused implements [holds.Attempt]. Whoever was refused for want of slots may be told in band.
func (a *attempt) Refused(claims []core.Claim, err error) {
	var full *core.FullError
	if errors.As(err, &full) && !a.door.slotRules[full.Claim].Service {
		a.share = hidden.Of(claims[full.Claim].Key)
	}
	a.inBand = true
}

// Spare implements [holds.Attempt]: what would have been refused has no slot.
func (a *attempt) Spare() (held holds.Held, status int, err error) {
	if a.what == connect {
		return nil, http.StatusNotImplemented, errHTTP2 // nothing can follow what it sends
	}
	held, err = a.open(new(core.Slot), nil, true)
	return held, http.StatusServiceUnavailable, err
}

// open opens the socket.
func (a *attempt) open(slot *core.Slot, budgets []hidden.Text, slotless bool) (_ holds.Held, err error) {
	if a.socket, err = a.door.open(a.r, slot, &a.handshake, budgets, slotless); err != nil {
		return nil, err
	}
	return holder{a.socket}, nil
}
