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

// Deny writes a refusal: the fields of [Verdict.SetFields], the status and the problem
// document, or what [Config].OnDenied writes instead. It does not read the request's
// body. A response to HEAD has no body. Deny does nothing if the verdict admits.
func (g *Guard) Deny(w http.ResponseWriter, r *http.Request, v Verdict) {
	if v.code() != 0 {
		g.deny(w, r, &v)
	}
}

func (g *Guard) deny(w http.ResponseWriter, r *http.Request, v *Verdict) {
	values := make(valueArena, 7) // what Draft11 and a refusal set
	v.setFields(w.Header(), &values)
	if g.config.OnDenied != nil {
		rec := &recorder{ResponseWriter: w}
		g.config.OnDenied(rec.writer(), r, *v)
		if rec.status != 0 || rec.hijacked {
			return
		}
	}
	writeDocument(w, r, v.code(), v.document(), &values)
}

// WriteProblem writes a refusal as [Guard.Deny] does, except for the verdict's fields:
// the status, Content-Type, Content-Length, X-Content-Type-Options and the document,
// which [Problem] returns. A response to HEAD has no body.
func WriteProblem(w http.ResponseWriter, r *http.Request, status int, document []byte) {
	values := make(valueArena, 3)
	writeDocument(w, r, status, newDocument(document), &values)
}

func writeDocument(w http.ResponseWriter, r *http.Request, status int, d document, values *valueArena) {
	h := w.Header()
	values.set(h, "Content-Type", ProblemType)
	values.set(h, "Content-Length", d.length)
	values.set(h, "X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		w.Write(d.body) //nolint:errcheck // the client may have disconnected
	}
}

// Problem returns the problem document (RFC 9457) of a refusal, whose media type is
// [ProblemType], for packages that enforce other limits than rates. Given the names of
// the policies that refused, which must be printable ASCII, the document is of the type
// quota-exceeded of draft-ietf-httpapi-ratelimit-headers-11, which implies status 429.
// Without names it contains no more than the status.
func Problem(status int, violated ...string) []byte {
	if len(violated) == 0 {
		return blank(status)
	}
	names := make([]string, len(violated))
	for i, name := range violated {
		names[i] = string(appendString(nil, name))
	}
	return quotaExceeded(names...)
}

// Problem returns the body of the refusal, a problem document (RFC 9457), whose media
// type is [ProblemType]. For status 429 it is of the type quota-exceeded of
// draft-ietf-httpapi-ratelimit-headers-11 and names the policies that refused; otherwise
// it contains no more than the status. It is nil if the verdict admits.
func (v Verdict) Problem() []byte {
	if v.code() == 0 {
		return nil
	}
	return bytes.Clone(v.document().body)
}

// A document is a body, which must not be changed, and its length as text.
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

// blank returns a document that contains no more than the status.
func blank(status int) []byte {
	return fmt.Appendf(nil, `{"type":"about:blank","title":"%s","status":%d}`, http.StatusText(status), status)
}

// quotaExceeded returns a document that names policies, given as appendString writes them.
func quotaExceeded(policies ...string) []byte {
	return []byte(`{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded",` +
		`"title":"Quota Exceeded","status":429,"violated-policies":[` + strings.Join(policies, ",") + `]}`)
}
