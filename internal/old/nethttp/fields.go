package nethttp

import (
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/headgate/headgate/core"
)

// Draft11 sets RateLimit-Policy and RateLimit as defined by draft-ietf-httpapi-ratelimit-headers-11, in the canonical
// form of RFC 9651:
//
//	RateLimit-Policy: "burst";q=10;w=1, "daily";q=5000;w=86400
//	RateLimit: "burst";r=9;t=1, "daily";r=4711;t=18
//
// q is the limit, and w the window, omitted if it is less than a second. r is the number of units left, and t the time
// until one more is available, omitted if nothing is used or if no more ever becomes available. An unlimited policy is
// not listed. RateLimit lists only policies whose state is known.
func Draft11(h http.Header, v Verdict) {
	if v.Decision == nil {
		return
	}
	var policies, states []byte
	for i := range v.Decision.Len() {
		a := v.Decision.At(i)
		if a.Limit == core.NoLimit {
			continue
		}
		policies = appendParameter(appendName(policies, a.Policy), ";q=", a.Limit)
		if a.Window >= time.Second {
			policies = appendParameter(policies, ";w=", seconds(a.Window))
		}
		if a.Limit > 0 && !v.Decision.Known() {
			continue
		}
		states = appendParameter(appendName(states, a.Policy), ";r=", a.Remaining)
		if a.NextAfter > 0 && a.NextAfter != core.Never {
			states = appendParameter(states, ";t=", seconds(a.NextAfter))
		}
	}
	add(h, "Ratelimit-Policy", policies)
	add(h, "Ratelimit", states)
}

// add adds a value to a field, given by its canonical name, unless it is there.
func add(h http.Header, name string, value []byte) {
	if len(value) > 0 && !slices.Contains(h[name], string(value)) {
		h[name] = append(h[name], string(value))
	}
}

// appendName appends an item of a list: a string, as RFC 9651, section 4.1.6, writes it. Names are printable ASCII.
func appendName(b []byte, name string) []byte {
	if len(b) > 0 {
		b = append(b, ", "...)
	}
	b = append(b, '"')
	for i := range len(name) {
		if name[i] == '"' || name[i] == '\\' {
			b = append(b, '\\')
		}
		b = append(b, name[i])
	}
	return append(b, '"')
}

// maxInteger is the largest integer of RFC 9651, section 3.3.1.
const maxInteger = 999_999_999_999_999

// appendParameter appends the name of a parameter and its value, n >= 0.
func appendParameter(b []byte, name string, n int64) []byte {
	return strconv.AppendInt(append(b, name...), min(n, maxInteger), 10)
}

// seconds returns d in seconds, rounded up.
func seconds(d time.Duration) int64 {
	s := int64(d / time.Second)
	if d%time.Second > 0 {
		s++
	}
	return s
}
