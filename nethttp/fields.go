package nethttp

import (
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/core"
)

// Fields tells a client where it stands, in the header of the response to a request
// that limiters were asked about, admitted or refused. The answers are
// in the verdict's Decision. It must not write Retry-After, which the guard does.
//
// [Draft11], [Draft06], [XRateLimit] and [NoFields] are there. Another may call
// several of them, or read the Decision:
//
//	func(h http.Header, v nethttp.Verdict) {
//		h.Set("X-Quota-Left", strconv.FormatInt(v.Decision.Remaining, 10))
//	}
type Fields func(h http.Header, v Verdict)

// Draft11 writes RateLimit-Policy and RateLimit by
// draft-ietf-httpapi-ratelimit-headers-11, in the canonical form of RFC 9651:
//
//	RateLimit-Policy: "burst";q=10;w=1, "daily";q=5000;w=86400
//	RateLimit: "burst";r=9;t=1, "daily";r=4711;t=18
//
// q is the limit and w the window, left out if that is less than a second. r is
// what is left, and t the time until there is one more, left out if nothing is used
// or if that never happens. Times are seconds, rounded up; numbers above
// 999,999,999,999,999 are written as that.
//
// An unlimited policy is not listed. RateLimit has only the policies of which
// something is known: none if the store did not answer and everything is admitted.
// Both fields are lists, and what is already in them stays, so that guards around
// each other all have their say.
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
		if a.Limit == core.NoLimit || !known(v.Decision.Source, a) {
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

// Draft06 writes RateLimit-Limit, RateLimit-Remaining and RateLimit-Reset, as the
// drafts before draft-ietf-httpapi-ratelimit-headers-07 had them, of the policy that
// decided:
//
//	RateLimit-Limit: 100
//	RateLimit-Remaining: 87
//	RateLimit-Reset: 8
//
// Reset is in seconds from now, rounded up, until nothing is used, or, in a refusal,
// the same as Retry-After. What is not known is left out; an unlimited policy is not
// written at all. These drafts' RateLimit-Policy, which has no names and needs a
// different limit for each policy, is not written.
func Draft06(h http.Header, v Verdict) {
	classic(h, v, "Ratelimit-Limit", "Ratelimit-Remaining", "Ratelimit-Reset")
}

// XRateLimit writes the values of [Draft06] in the widespread X-RateLimit-Limit,
// X-RateLimit-Remaining and X-RateLimit-Reset. No document defines them; Reset is in
// seconds from now, as most have it, not a time of day.
func XRateLimit(h http.Header, v Verdict) {
	classic(h, v, "X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset")
}

// NoFields writes nothing. Refusals have Retry-After all the same.
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
	if !known(v.Decision.Source, a) {
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

// known reports whether an answer tells what is left, which takes somebody who
// looked, unless the policy never grants anything.
func known(s core.Source, a core.Answer) bool {
	return s != core.SourcePolicy && s != core.SourceOpen || a.Limit == 0
}

// A sheet is what never changes about the policies that are asked: written once.
type sheet struct {
	policies []core.Policy
	names    []string   // of the policies, as appendString writes them
	list     string     // of those that limit, as RateLimit-Policy has them; may be empty
	refusals []document // the i-th is written if the i-th policy alone refused
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

// join makes one sheet of several.
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

// maxSheets bounds the memory that a Plan takes which makes new limiters again and
// again.
const maxSheets = 1000

// sheets remembers the sheet of each limiter.
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

// ofAll returns the sheet of a question.
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

// appendString writes a string of RFC 9651, section 4.1.6. s is printable ASCII, as
// all names are; so this is how JSON writes it too.
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

// appendParam writes the name of a parameter and its value, n >= 0.
func appendParam(b []byte, name string, n int64) []byte {
	return strconv.AppendInt(append(b, name...), min(n, maxInteger), 10)
}

func integer(n int64) string { return strconv.FormatInt(min(n, maxInteger), 10) }

// seconds rounds up.
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

// add is set for a field that is a list: values already there stay.
func (a *valueArena) add(h http.Header, name, value string) {
	if had := h[name]; len(had) > 0 {
		h[name] = append(had, value)
	} else {
		a.set(h, name, value)
	}
}
