// Package httprate is a program with go-chi/httprate, and the same with headgate.
package httprate

import (
	"net"
	"net/http"
	"time"

	"github.com/go-chi/httprate"
)

// Before admits about 60 requests a minute of each client address.
func Before(app http.Handler) http.Handler {
	limit := httprate.LimitBy(60, time.Minute, func(r *http.Request) (string, error) {
		host, _, err := net.SplitHostPort(r.RemoteAddr)
		return httprate.CanonicalizeIP(host), err
	})
	return limit(app)
}
