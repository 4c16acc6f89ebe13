package websocketmw

import (
	"net/http"

	"github.com/headgate/headgate/nethttp"
)

// Deny writes the refusal: the fields of [Verdict.SetFields], the status and the problem
// document, unless [Config].Handshakes, InBand or OnDenied writes it. Deny does nothing
// if the request is admitted.
func (g *Guard) Deny(w http.ResponseWriter, r *http.Request, v Verdict) {
	if v.Status() == 0 {
		return
	}
	if v.handshake != nil && v.handshake.Status() != 0 {
		g.config.Handshakes.Deny(w, r, *v.handshake)
		return
	}
	if g.refuseInBand(w, r, v) {
		return
	}
	v.SetFields(w.Header())
	if g.config.OnDenied != nil {
		rec := &recorder{ResponseWriter: w}
		g.config.OnDenied(rec.writer(), r, v)
		if rec.status != 0 || rec.hijacked {
			return
		}
	}
	nethttp.WriteProblem(w, r, v.Status(), v.Problem())
}
