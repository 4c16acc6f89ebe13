package nethttp

import (
	"net/http"
	"strconv"
)

// ProblemType is the media type of [Verdict.Problem] (RFC 9457).
const ProblemType = "application/problem+json"

// Deny writes the refusal: the fields of [Verdict.SetFields], the status and the
// problem document, or what [Config].OnDenied writes. It does not read the
// request's body. A response to HEAD has no body. Deny does nothing if the verdict
// admits.
func (g *Guard) Deny(w http.ResponseWriter, r *http.Request, v Verdict) {
	if v.Status() == 0 {
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
	body := v.Problem()
	put(w.Header(),
		"Content-Type", ProblemType,
		"Content-Length", strconv.Itoa(len(body)),
		"X-Content-Type-Options", "nosniff")
	w.WriteHeader(v.Status())
	if r.Method != http.MethodHead {
		w.Write(body) //nolint:errcheck // the client may have gone
	}
}

// Problem returns the body of the refusal, a problem document (RFC 9457) of the
// media type [ProblemType]. Over a limit it is of the type quota-exceeded of
// draft-ietf-httpapi-ratelimit-headers-11 and names the policies that refused;
// otherwise it says no more than the status does. It is nil if the verdict admits.
func (v Verdict) Problem() []byte {
	status := v.Status()
	if status == 0 {
		return nil
	}
	b := make([]byte, 0, 256)
	if status != http.StatusTooManyRequests {
		b = append(b, `{"type":"about:blank","title":"`...)
		b = append(b, http.StatusText(status)...)
		b = append(b, `","status":`...)
		b = strconv.AppendInt(b, int64(status), 10)
		return append(b, '}')
	}
	b = append(b, `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded",`+
		`"title":"Quota Exceeded","status":429,"violated-policies":[`...)
	empty := true
	for i := range v.Decision.Len() {
		if v.Decision.Answer(i).Allowed {
			continue
		}
		if !empty {
			b = append(b, ',')
		}
		b = append(b, v.sheet.names[i]...)
		empty = false
	}
	return append(b, "]}"...)
}
