package nethttp

import (
	"bytes"
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// ProblemType is the media type of [Verdict.Problem] (RFC 9457).
const ProblemType = "application/problem+json"

// Deny writes the refusal: the fields of [Verdict.SetFields], the status and the
// problem document, or what [Config].OnDenied writes. It does not read the
// request's body. A response to HEAD has no body. Deny does nothing if the verdict
// admits.
func (g *Guard) Deny(w http.ResponseWriter, r *http.Request, v Verdict) {
	if v.code() != 0 {
		g.deny(w, r, &v)
	}
}

func (g *Guard) deny(w http.ResponseWriter, r *http.Request, v *Verdict) {
	c := make(cells, 7) // as many fields as Draft11 and a refusal have
	v.setFields(w.Header(), &c)
	if g.config.OnDenied != nil {
		rec := &recorder{ResponseWriter: w}
		g.config.OnDenied(rec.writer(), r, *v)
		if rec.status != 0 || rec.hijacked {
			return
		}
	}
	d := v.document()
	h := w.Header()
	c.set(h, "Content-Type", ProblemType)
	c.set(h, "Content-Length", d.length)
	c.set(h, "X-Content-Type-Options", "nosniff")
	w.WriteHeader(v.code())
	if r.Method != http.MethodHead {
		w.Write(d.body) //nolint:errcheck // the client may have gone
	}
}

// Problem returns the body of the refusal, a problem document (RFC 9457) of the
// media type [ProblemType]. Over a limit it is of the type quota-exceeded of
// draft-ietf-httpapi-ratelimit-headers-11 and names the policies that refused;
// otherwise it says no more than the status does. It is nil if the verdict admits.
func (v Verdict) Problem() []byte {
	if v.code() == 0 {
		return nil
	}
	return bytes.Clone(v.document().body)
}

// A document is a body, which nobody may change, and its length as text.
type document struct {
	body   []byte
	length string
}

func newDocument(body []byte) document { return document{body, strconv.Itoa(len(body))} }

// document returns the body of a refusal.
func (v *Verdict) document() document {
	status := v.code()
	if status != http.StatusTooManyRequests {
		return newDocument(blank(status))
	}
	var room [16]string
	refused := room[:0]
	last := 0
	for i := range v.Decision.Len() {
		if !v.Decision.Answer(i).Allowed {
			refused = append(refused, v.sheet.names[i])
			last = i
		}
	}
	if len(refused) == 1 {
		return v.sheet.refusals[last]
	}
	return newDocument(quotaExceeded(refused...))
}

// blank says no more than the status does.
func blank(status int) []byte {
	return fmt.Appendf(nil, `{"type":"about:blank","title":"%s","status":%d}`, http.StatusText(status), status)
}

// quotaExceeded names policies, as appendString writes them.
func quotaExceeded(policies ...string) []byte {
	return []byte(`{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded",` +
		`"title":"Quota Exceeded","status":429,"violated-policies":[` + strings.Join(policies, ",") + `]}`)
}
