package rpc

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/headgate/headgate/keyfuncs"
)

var errNoCertificate = fmt.Errorf("%w: a client certificate that the server has verified", keyfuncs.ErrAbsent)

// Procedure is a key: the procedure of the call.
func Procedure(r *http.Request) (string, error) { return Of(r).Procedure, nil }

// Procedures returns a function that reports whether the procedure begins with one of the prefixes.
func Procedures(prefixes []string) func(*http.Request) bool {
	prefixes = slices.Clone(prefixes)
	return func(r *http.Request) bool {
		return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(Of(r).Procedure, p) })
	}
}

// TLSSubject is a key: the subject of the client's certificate, if the server has verified it. A
// certificate that was only sent proves nothing.
func TLSSubject(r *http.Request) (string, error) {
	if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
		return "", errNoCertificate
	}
	subject := r.TLS.VerifiedChains[0][0].Subject.String()
	if subject == "" {
		return "", errNoCertificate
	}
	return subject, nil
}
