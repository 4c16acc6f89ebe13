package nethttp

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/core"
)

// Fields sets the fields that describe the state of the limits, in the header of the
// response to an admitted or refused request. It is called only if limiters were asked;
// their answers are in the verdict's Decision. It must not set Retry-After, which the
// guard sets, and must be safe for concurrent use.
//
// [Draft11], [Draft06], [XRateLimit] and [NoFields] are provided. Others may call
// several of them, or read the Decision:
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
	if v.sheet == nil || v.sheet.list == "" {
		return
	}
	var room [128]byte
	b := room[:0]
	for i := range v.Decision.Len() {
		a := v.Decision.Answer(i)
		if a.Limit == core.NoLimit || !known(v.Decision.Source, a.Limit) {
			continue
		}
		if len(b) > 0 {
			b = append(b, ", "...)
		}
		b = append(b, v.sheet.names[i]...)
		b = appendParam(b, ";r=", a.Remaining)
		if a.NextAfter > 0 && a.NextAfter != core.Never {
			b = appendParam(b, ";t=", seconds(a.NextAfter))
		}
	}
	values.add(h, "Ratelimit-Policy", v.sheet.list)
	if len(b) > 0 {
		values.add(h, "Ratelimit", string(b))
	}
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

// NoFields sets nothing. Refusals still have Retry-After.
func NoFields(http.Header, Verdict) {}

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
		if a := v.Decision.Answer(i); a.Policy == v.Decision.Policy {
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

// A sheet holds the texts about policies that are the same in every response.
type sheet struct {
	policies []core.Policy
	names    []string   // of the policies, as appendString writes them
	list     string     // RateLimit-Policy, of those that limit; may be empty
	refusals []document // the i-th is for a refusal by the i-th policy alone
}

func newSheet(l *core.Limiter) *sheet {
	s := &sheet{policies: l.Policies()}
	var list []byte
	for _, p := range s.policies {
		name := string(appendString(nil, p.Name()))
		s.names = append(s.names, name)
		s.refusals = append(s.refusals, newDocument(quotaExceeded(name)))
		if p.Limit() == core.NoLimit {
			continue
		}
		if len(list) > 0 {
			list = append(list, ", "...)
		}
		list = append(list, name...)
		list = appendParam(list, ";q=", p.Limit())
		if w := p.Window(); w >= time.Second {
			list = appendParam(list, ";w=", seconds(w))
		}
	}
	s.list = string(list)
	return s
}

// join returns the sheet of several limiters.
func join(all []*sheet) *sheet {
	if len(all) == 1 {
		return all[0]
	}
	joined := &sheet{}
	var lists []string
	for _, s := range all {
		joined.policies = append(joined.policies, s.policies...)
		joined.names = append(joined.names, s.names...)
		joined.refusals = append(joined.refusals, s.refusals...)
		if s.list != "" {
			lists = append(lists, s.list)
		}
	}
	joined.list = strings.Join(lists, ", ")
	return joined
}

// maxSheets bounds the memory for a Plan that keeps making new limiters.
const maxSheets = 1000

// sheets caches the sheet of each limiter. It is safe for concurrent use.
type sheets struct {
	byLimiter sync.Map // *core.Limiter to *sheet
	count     atomic.Int32
}

func (m *sheets) of(l *core.Limiter) *sheet {
	if s, ok := m.byLimiter.Load(l); ok {
		return s.(*sheet) //nolint:forcetypeassert // nothing else is stored
	}
	if m.count.Add(1) > maxSheets {
		m.byLimiter.Clear()
		m.count.Store(1)
	}
	s := newSheet(l)
	m.byLimiter.Store(l, s)
	return s
}

// ofAll returns the sheet of the limiters that are charged.
func (m *sheets) ofAll(charges []core.Charge) *sheet {
	if len(charges) == 1 {
		return m.of(charges[0].Limiter)
	}
	all := make([]*sheet, 0, len(charges))
	for _, c := range charges {
		all = append(all, m.of(c.Limiter))
	}
	return join(all)
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
// already there if SetFields and Deny are both called.
func (a *valueArena) add(h http.Header, name, value string) {
	switch had := h[name]; {
	case len(had) == 0:
		a.set(h, name, value)
	case !slices.Contains(had, value):
		h[name] = append(had, value)
	}
}
