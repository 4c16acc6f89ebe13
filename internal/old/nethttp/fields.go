package nethttp

import (
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/headgate/headgate/internal/old/core"
)

// Draft11 sets RateLimit-Policy and RateLimit as defined by
// draft-ietf-httpapi-ratelimit-headers-11, in the canonical form of RFC 9651:
//
//	RateLimit-Policy: "burst";q=10;w=1, "daily";q=5000;w=86400
//	RateLimit: "burst";r=9;t=1, "daily";r=4711;t=18
//
// q is the limit, and w the window, omitted if it is less than a second. r is the number of units
// left, and t the time until one more is available. t is omitted if nothing is used or if no more
// ever becomes available. Times are in seconds, rounded up. The largest number is
// 999,999,999,999,999, the largest integer of RFC 9651.
//
// An unlimited policy is not listed, nor is a limit of the service. RateLimit lists only policies whose state is known:
// none if the store was unreachable and every request is admitted. Both fields are lists.
// Draft11 appends to existing values, so that nested guards all appear. A value that is
// already there is not repeated.
func Draft11(h http.Header, v Verdict) {
	add(h, "Ratelimit-Policy", v.appendPolicies(nil))
	add(h, "Ratelimit", v.appendStates(nil))
}

// add adds a value to a field, given by its canonical name, unless it is there.
func add(h http.Header, name string, value []byte) {
	if len(value) > 0 && !slices.Contains(h[name], string(value)) {
		h[name] = append(h[name], string(value))
	}
}

// appendPolicies appends the RateLimit-Policy of all answers.
func (v *Verdict) appendPolicies(b []byte) []byte {
	start := len(b)
	for i := range v.Decision.Len() {
		if a := v.Decision.Answer(i); !v.hides(a.Limiter) {
			b = appendPolicy(b, start, a.Policy, a.Limit, a.Window)
		}
	}
	return b
}

// appendPolicy appends a policy to the RateLimit-Policy that begins at start.
func appendPolicy(b []byte, start int, name string, limit int64, window time.Duration) []byte {
	if limit == core.NoLimit {
		return b
	}
	b = appendString(appendComma(b, start), name)
	b = appendParam(b, ";q=", limit)
	if window >= time.Second {
		b = appendParam(b, ";w=", seconds(window))
	}
	return b
}

// appendStates appends the RateLimit of all answers.
func (v *Verdict) appendStates(b []byte) []byte {
	start, d := len(b), &v.Decision
	for i := range d.Len() {
		a := d.Answer(i)
		if v.hides(a.Limiter) || a.Limit == core.NoLimit || !known(d.Source, a.Limit) {
			continue
		}
		b = appendParam(appendString(appendComma(b, start), a.Policy), ";r=", a.Remaining)
		if a.NextAfter > 0 && a.NextAfter != core.Never {
			b = appendParam(b, ";t=", seconds(a.NextAfter))
		}
	}
	return b
}

// known reports whether an answer of a policy with the given limit has the number of units
// left. Unless the policy never grants anything, that takes a store, or the local state
// that replaces it.
func known(s core.Source, limit int64) bool {
	return s != core.SourcePolicy && s != core.SourceOpen || limit == 0
}

// appendComma appends what is before an item of the list that begins at start.
func appendComma(b []byte, start int) []byte {
	if len(b) > start {
		b = append(b, ", "...)
	}
	return b
}

// appendString appends a string as RFC 9651, section 4.1.6, writes it. s must be printable
// ASCII, as all names are; so it is a string of JSON too.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	for i := range len(s) {
		if s[i] == '"' || s[i] == '\\' {
			b = append(b, '\\')
		}
		b = append(b, s[i])
	}
	return append(b, '"')
}

// maxInteger is the largest integer of RFC 9651, section 3.3.1.
const maxInteger = 999_999_999_999_999

// appendParam appends the name of a parameter and its value, n >= 0.
func appendParam(b []byte, name string, n int64) []byte {
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
