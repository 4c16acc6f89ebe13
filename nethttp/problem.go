package nethttp

import (
	"net/http"
	"strconv"
)

// Problem returns the problem document (RFC 9457) of a refusal, of the media type
// [ProblemType], for packages that refuse for other limits than rates. With the names
// of policies, printable ASCII, it is that of status 429, of the type quota-exceeded
// of draft-ietf-httpapi-ratelimit-headers-11; without, it says no more than the status.
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

// WriteProblem writes a refusal as [Guard.Deny] does, apart from the verdict's fields:
// the status and the document. A response to HEAD has no body.
func WriteProblem(w http.ResponseWriter, r *http.Request, status int, document []byte) {
	h := w.Header()
	h.Set("Content-Type", ProblemType)
	h.Set("Content-Length", strconv.Itoa(len(document)))
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		w.Write(document) //nolint:errcheck // the client may have gone
	}
}
