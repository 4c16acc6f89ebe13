package websocketmw

import (
	"net/http"

	"github.com/headgate/headgate/internal/record"
)

// Refuse writes the refusal: the fields of [Verdict.SetFields], the status and the problem
// document, unless [Config].Handshakes, InBand or OnRefused writes it. Refuse does nothing
// if the request is admitted.
func (g *Guard) Refuse(w http.ResponseWriter, r *http.Request, v Verdict) {
	if v.Status() == 0 {
		return
	}
	if v.handshake != nil && v.handshake.Status() != 0 {
		g.config.Handshakes.Refuse(w, r, v.handshake)
		return
	}
	if g.refuseInBand(w, r, v) {
		return
	}
	v.SetFields(w.Header())
	if g.config.OnRefused != nil {
		rec := &record.Recorder{ResponseWriter: w}
		g.config.OnRefused(rec.Writer(), r, v)
		if rec.Responded() {
			return
		}
	}
	d := v.document()
	d.Write(w, r, make([]string, 3))
}
