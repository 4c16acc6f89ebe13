package nethttp

import (
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/problem"
)

// Fields sets the fields that describe the state of the limits, in the header of the
// response to an admitted or refused request. It is called only if limiters were asked;
// their answers are in the verdict's Decision. It must not set Retry-After, which the
// guard sets, and must be safe for concurrent use.
//
// [Draft11], [Draft06] and [XRateLimit] are provided. Others may call several of them, or read the Decision:
//
//	func(h http.Header, v nethttp.Verdict) {
//		h.Set("X-Quota-Left", strconv.FormatInt(v.Decision.Remaining, 10))
//	}
type Fields func(h http.Header, v Verdict)

// Draft11 sets RateLimit-Policy and RateLimit as defined by
// draft-ietf-httpapi-ratelimit-headers-11, in the canonical form of RFC 9651:
//
//	RateLimit-Policy: "burst";q=10;w=1, "daily";q=5000;w=86400
//	RateLimit: "burst";r=9;t=1, "daily";r=4711;t=18
//
// q is the limit, and w the window, omitted if it is less than a second. r is the number
// of units left, and t the time until one more is available, omitted if nothing is used
// or if no more ever becomes available. Times are in seconds, rounded up. Numbers above
// 999,999,999,999,999 are written as that, the largest integer of RFC 9651.
//
// An unlimited policy is not listed. RateLimit lists only policies whose state is known:
// none if the store was unreachable and every request is admitted. Both fields are lists.
// Draft11 appends to existing values, so that nested guards all appear. A value that is
// already there is not repeated.
func Draft11(h http.Header, v Verdict) {
	var values valueArena
	v.draft11(h, &values)
}

func (v *Verdict) draft11(h http.Header, values *valueArena) {
	var room [256]byte
	b := room[:0]
	if v.sheet == nil {
		b = appendPolicies(b, &v.Decision)
	}
	n := len(b)
	text := string(appendStates(b, &v.Decision)) // of both fields: one allocation
	policies, states := text[:n], text[n:]
	if v.sheet != nil {
		policies = v.sheet.policies
	}
	if policies != "" {
		values.add(h, "Ratelimit-Policy", policies)
	}
	if states != "" {
		values.add(h, "Ratelimit", states)
	}
}

// appendPolicies appends the RateLimit-Policy of all answers.
func appendPolicies(b []byte, d *core.Decision) []byte {
	start := len(b)
	for i := range d.Len() {
		a := d.Answer(i)
		b = appendPolicy(b, start, a.Policy, a.Limit, a.Window)
	}
	return b
}

// appendPolicy appends a policy to the RateLimit-Policy that begins at start.
func appendPolicy(b []byte, start int, name string, limit int64, window time.Duration) []byte {
	if limit == core.NoLimit {
		return b
	}
	b = appendItem(b, start, name)
	b = appendParam(b, ";q=", limit)
	if window >= time.Second {
		b = appendParam(b, ";w=", seconds(window))
	}
	return b
}

// appendStates appends the RateLimit of all answers.
func appendStates(b []byte, d *core.Decision) []byte {
	start := len(b)
	for i := range d.Len() {
		a := d.Answer(i)
		if a.Limit == core.NoLimit || !known(d.Source, a.Limit) {
			continue
		}
		b = appendItem(b, start, a.Policy)
		b = appendParam(b, ";r=", a.Remaining)
		if a.NextAfter > 0 && a.NextAfter != core.Never {
			b = appendParam(b, ";t=", seconds(a.NextAfter))
		}
	}
	return b
}

// Draft06 sets RateLimit-Limit, RateLimit-Remaining and RateLimit-Reset of the policy
// that decided, as defined by drafts before draft-ietf-httpapi-ratelimit-headers-07:
//
//	RateLimit-Limit: 100
//	RateLimit-Remaining: 87
//	RateLimit-Reset: 8
//
// Reset is the number of seconds, rounded up, until nothing is used, or, in a refusal,
// the same as Retry-After. Unknown values are omitted, and nothing is set for an unlimited
// policy. The RateLimit-Policy of these drafts is not set, because it has no names and
// needs a different limit for each policy.
func Draft06(h http.Header, v Verdict) {
	classic(h, v, "Ratelimit-Limit", "Ratelimit-Remaining", "Ratelimit-Reset")
}

// XRateLimit sets the values of [Draft06] in the common fields X-RateLimit-Limit,
// X-RateLimit-Remaining and X-RateLimit-Reset, which no standard defines. Reset is a
// number of seconds, as in most implementations, not a time of day.
func XRateLimit(h http.Header, v Verdict) {
	classic(h, v, "X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset")
}

func classic(h http.Header, v Verdict, limit, remaining, reset string) {
	a, ok := decider(v)
	if !ok || a.Limit == core.NoLimit {
		return
	}
	after := a.ResetAfter
	if !v.Decision.Allowed {
		after = a.RetryAfter
	}
	values := make(valueArena, 3)
	values.set(h, limit, integer(a.Limit))
	if !known(v.Decision.Source, a.Limit) {
		return
	}
	values.set(h, remaining, integer(a.Remaining))
	if after != core.Never {
		values.set(h, reset, integer(seconds(after)))
	}
}

// decider returns the answer of the policy that decided.
func decider(v Verdict) (core.Answer, bool) {
	for i := range v.Decision.Len() {
		if a := v.Decision.Answer(i); a.Limiter == v.Decision.Limiter && a.Policy == v.Decision.Policy {
			return a, true
		}
	}
	return core.Answer{}, false
}

// known reports whether an answer of a policy with the given limit has the number of units
// left. Unless the policy never grants anything, that takes a store, or the local state
// that replaces it.
func known(s core.Source, limit int64) bool {
	return s != core.SourcePolicy && s != core.SourceOpen || limit == 0
}

// A sheet holds the texts about a guard's own limiters, which are the same in every
// response. Those about a limiter that Plan returned are written for each response,
// because a program may have a limiter for each customer.
type sheet struct {
	policies string             // RateLimit-Policy
	refusals []problem.Document // the i-th is for a refusal by the i-th policy alone
}

func newSheet(rules []Rule) *sheet {
	s := &sheet{}
	var b []byte
	for _, rule := range rules {
		_, limiter := rule.own()
		for _, p := range limiter.Policies() {
			b = appendPolicy(b, 0, p.Name(), p.Limit(), p.Window())
			s.refusals = append(s.refusals, problem.QuotaExceeded(p.Name()))
		}
	}
	s.policies = string(b)
	return s
}

// appendItem appends an item, without its parameters, to the list that begins at start.
func appendItem(b []byte, start int, name string) []byte {
	if len(b) > start {
		b = append(b, ", "...)
	}
	return appendString(b, name)
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

func integer(n int64) string { return strconv.FormatInt(min(n, maxInteger), 10) }

// seconds returns d in seconds, rounded up.
func seconds(d time.Duration) int64 {
	s := int64(d / time.Second)
	if d%time.Second > 0 {
		s++
	}
	return s
}

// A valueArena is where the value slices of an http.Header are cut from: one allocation
// serves all fields of a response, where Header.Set makes one for each. The slices do
// not overlap, because a handler may change or append to any of them.
type valueArena []string

// set sets a field, given by its canonical name.
func (a *valueArena) set(h http.Header, name, value string) {
	if len(*a) == 0 {
		*a = make(valueArena, 2) // what an admitted response has
	}
	(*a)[0] = value
	h[name] = (*a)[:1:1]
	*a = (*a)[1:]
}

// add is set for a field that is a list: values already there stay. The same value is
// already there if SetFields and Refuse are both called.
func (a *valueArena) add(h http.Header, name, value string) {
	switch had := h[name]; {
	case len(had) == 0:
		a.set(h, name, value)
	case !slices.Contains(had, value):
		h[name] = append(had, value)
	}
}
