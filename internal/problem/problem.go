// Package problem has refusals as problem documents (RFC 9457).
package problem

import (
	"fmt"
	"net/http"
	"strconv"
)

// Type is the media type of a [Document].
const Type = "application/problem+json"

// A Document is the problem document of a refusal.
type Document struct {
	Body   []byte
	Text   string // the Body
	Length string // the value of Content-Length
}

// Blank returns a document that contains no more than the status.
func Blank(status int) Document {
	const blank = `{"type":"about:blank","title":"%s","status":%d}`
	return document(fmt.Appendf(nil, blank, http.StatusText(status), status))
}

// QuotaExceeded returns a document of the type quota-exceeded of draft-ietf-httpapi-ratelimit-headers-11. It names
// the policies or slots that refused, in printable ASCII.
func QuotaExceeded(policies ...string) Document {
	b := append(make([]byte, 0, 192), `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded",`+
		`"title":"Quota Exceeded","status":429,"violated-policies":[`...)
	for i, name := range policies {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendQuote(b, name) // which writes printable ASCII as JSON does
	}
	return document(append(b, "]}"...))
}

func document(body []byte) Document { return Document{body, string(body), strconv.Itoa(len(body))} }
