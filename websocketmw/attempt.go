package websocketmw

import (
	"errors"
	"net/http"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/hidden"
	"github.com/headgate/headgate/internal/holds"
	"github.com/headgate/headgate/nethttp"
)

// An attempt is an upgrade that the guard decides about. What it does is called by the guard of
// package nethttp, which has the rules.
type attempt struct {
	guard *Guard
	r     *http.Request
	what  kind
	start time.Time // of the handshake, if there is a fleet

	socket  *Socket // nil: none was admitted
	budgets []hidden.Text
	place   *place // for the guard's fleet; nil if there is none, or no key

	inBand bool        // the refusal may be in band
	share  hidden.Text // the key of the client whose limit refused, if one did
}

// Begin implements [holds.Attempt].
func (a *attempt) Begin() (status int, err error) {
	switch {
	case a.what == malformed:
		return http.StatusBadRequest, errMalformed
	case a.guard.isDraining():
		a.inBand = true
		return http.StatusServiceUnavailable, core.ErrClosed
	}
	return 0, nil
}

// Claim implements [holds.Attempt].
func (a *attempt) Claim(claims []core.Claim) (status int, err error) {
	if a.guard.fleet != nil {
		a.place = newPlace(a.start, claims)
	}
	if a.budgets, err = a.guard.config.budgetKeys(a.r); err != nil {
		return a.guard.keyStatus(err), err
	}
	return 0, nil
}

// Hold implements [holds.Attempt].
func (a *attempt) Hold(claims []core.Claim, slot *core.Slot) (_ holds.Held, err error) {
	g := a.guard
	if g.fleet != nil {
		if a.place.evicts, err = g.fleet.makeRoom(a.r.Context(), claims, slot); err != nil {
			return nil, err
		}
	}
	s := g.newSocket(a.r.Context(), a.what, slot, a.budgets)
	s.place = a.place
	if !g.add(s) { // draining since Begin
		return nil, core.ErrClosed
	}
	a.socket = s
	return holder{s}, nil
}

// Refused implements [holds.Attempt]. Whoever was refused for want of slots may be told in band.
func (a *attempt) Refused(claims []core.Claim, err error) {
	var full *core.FullError
	if errors.As(err, &full) && !a.guard.slotRules[full.Claim].Service {
		a.share = hidden.Of(claims[full.Claim].Key)
	}
	a.inBand = true
}

// Spare implements [holds.Attempt]: what would have been refused has no slot.
func (a *attempt) Spare() (holds.Held, error) {
	g := a.guard
	s := g.newSocket(a.r.Context(), a.what, new(core.Slot), nil)
	if s.place = a.place; s.place != nil { // CloseAll is not in shadow
		s.place.slotless = true
	}
	s.spared = true
	s.life.Spare()
	if !g.add(s) {
		return nil, core.ErrClosed
	}
	a.socket = s
	return holder{s}, nil
}

// Refuse writes the refusal as [nethttp.Guard.Refuse] does, unless [Config].InBand does it. It does
// nothing if the request is admitted.
func (g *Guard) Refuse(w http.ResponseWriter, r *http.Request, v nethttp.Verdict) {
	if v.Status() == 0 || g.refuseInBand(w, r, v) {
		return
	}
	g.gate.Refuse(w, r, v)
}
