package websocketmw

import (
	"net/http"

	"github.com/headgate/headgate/nethttp"
)

// Deny writes the refusal: the fields of [Verdict.SetFields], the status and the
// problem document, or what [Config].OnDenied writes, or a 101 that is closed at once
// by [Config].InBand. Deny does nothing if the
// verdict admits.
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
		n := &noting{ResponseWriter: w}
		g.config.OnDenied(n, r, v)
		if n.wrote {
			return
		}
	}
	nethttp.WriteProblem(w, r, v.Status(), v.Problem())
}

// A noting writer notes whether something was written.
type noting struct {
	http.ResponseWriter

	wrote bool
}

// Unwrap is for [http.ResponseController].
func (n *noting) Unwrap() http.ResponseWriter { return n.ResponseWriter }

func (n *noting) WriteHeader(status int) {
	n.wrote = true
	n.ResponseWriter.WriteHeader(status)
}

func (n *noting) Write(b []byte) (int, error) {
	n.wrote = true
	return n.ResponseWriter.Write(b)
}
