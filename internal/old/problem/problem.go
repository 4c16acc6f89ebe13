// Package problem writes refusals as problem documents (RFC 9457).
package problem

import (
	"bytes"
	"fmt"
	"net/http"
	"strconv"
)

// Type is the media type of a [Document].
const Type = "application/problem+json"

// A Document is the problem document of a refusal. headgated appends members of its own, such as limit and remaining:
// others must not have these names.
type Document struct {
	status int
	body   []byte
	length string
}

// Blank returns a document that contains no more than the status.
func Blank(status int) Document {
	return document(status, fmt.Appendf(nil, `{"type":"about:blank","title":"%s","status":%d}`, http.StatusText(status), status))
}

// QuotaExceeded returns a document with status 429 of the type quota-exceeded of
// draft-ietf-httpapi-ratelimit-headers-11. It names the policies that refused, at least
// one, in printable ASCII.
func QuotaExceeded(policies ...string) Document {
	b := append(make([]byte, 0, 192), `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded",`+
		`"title":"Quota Exceeded","status":429,"violated-policies":[`...)
	for i, name := range policies {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendQuote(b, name) // which writes printable ASCII as JSON does
	}
	return document(http.StatusTooManyRequests, append(b, "]}"...))
}

func document(status int, body []byte) Document {
	return Document{status, body, strconv.Itoa(len(body))}
}

// Bytes returns a copy of the document.
func (d *Document) Bytes() []byte { return bytes.Clone(d.body) }

// Write writes the refusal: Content-Type, Content-Length, X-Content-Type-Options, the
// status and the document. A response to HEAD has no body. The values of the fields are
// put into room, which has a length of at least 3 and belongs to the response from then on.
func (d *Document) Write(w http.ResponseWriter, r *http.Request, room []string) {
	room[0], room[1], room[2] = Type, d.length, "nosniff"
	h := w.Header()
	h["Content-Type"], h["Content-Length"], h["X-Content-Type-Options"] = room[0:1:1], room[1:2:2], room[2:3:3]
	w.WriteHeader(d.status)
	if r.Method != http.MethodHead {
		w.Write(d.body) //nolint:errcheck // the client may have disconnected
	}
}
