package nethttp

import (
	"net/http"
	"slices"
	"strconv"
	"time"
	"unsafe"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/problem"
)

// Fields sets the fields that describe the state of the limits, in the header of the
// response to an admitted or refused request. It is called only if limiters or slots were asked;
// the answers of limiters are in the verdict's Decision. It must not set Retry-After, which the
// guard sets, and must be safe for concurrent use.
//
// [Draft11] and [XRateLimit] are provided. Others may call both, or read the Decision:
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
// q is the limit, and w the window, omitted if it is less than a second. r is the number of units
// left, and t the time until one more is available. t is omitted if nothing is used or if no more
// ever becomes available. Times are in seconds, rounded up. The largest number is
// 999,999,999,999,999, the largest integer of RFC 9651.
//
// Slots have no window, but a unit, and as many are left as r says:
//
//	RateLimit-Policy: "exports";q=2;qu="concurrent-requests"
//	RateLimit: "exports";r=1
//
// An unlimited policy is not listed, nor is a limit of the service ([Rule].Service). RateLimit lists only policies whose state is known:
// none if the store was unreachable and every request is admitted. Both fields are lists.
// Draft11 appends to existing values, so that nested guards all appear. A value that is
// already there is not repeated.
func Draft11(h http.Header, v Verdict) {
	var b block
	b.make(2)
	v.draft11(h, &b)
}

func (v *Verdict) draft11(h http.Header, b *block) {
	slots := v.occupancies()
	if !v.asked() && len(slots) == 0 {
		return
	}
	var policies string
	if v.sheet != nil && len(slots) == 0 {
		policies = v.sheet.policies
	} else {
		b.text = v.appendPolicies(b.text)
		policies = b.cut(0)
	}
	start := len(b.text)
	b.text = v.appendStates(b.text)
	states := b.cut(start)
	empty := len(h) == 0 // then there is nothing to look for
	if policies != "" {
		b.add(h, "Ratelimit-Policy", policies, empty)
	}
	if states != "" {
		b.add(h, "Ratelimit", states, empty)
	}
}

// appendPolicies appends the RateLimit-Policy of all answers and slots.
func (v *Verdict) appendPolicies(b []byte) []byte {
	start := len(b)
	for i := range v.Decision.Len() {
		if a := v.Decision.Answer(i); !v.hides(a.Limiter) {
			b = appendPolicy(b, start, a.Policy, a.Limit, a.Window)
		}
	}
	for i, o := range v.occupancies() {
		if v.hidesSlots(i) || o.Limit == core.NoLimit {
			continue
		}
		b = appendString(appendComma(b, start), o.Slots)
		b = appendParam(b, ";q=", o.Limit)
		b = append(b, `;qu="concurrent-requests"`...)
	}
	return b
}

// hidesSlots reports whether the response does not show the i-th slots.
func (v *Verdict) hidesSlots(i int) bool { return v.guard.config.Rules[v.guard.slots[i]].Service }

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

// appendStates appends the RateLimit of all answers and slots. The sheet, unless it is nil, has the
// policies' names as they are written.
func (v *Verdict) appendStates(b []byte) []byte {
	start, d, s := len(b), &v.Decision, v.sheet
	if d.Len() == 1 && !v.hides(d.Limiter) { // no answer is copied: the decision has the same numbers
		b = appendState(b, start, d, s, 0, d.Policy, d.Limit, d.Remaining, d.Answer(0).NextAfter)
	} else {
		for i := range d.Len() {
			if a := d.Answer(i); !v.hides(a.Limiter) {
				b = appendState(b, start, d, s, i, a.Policy, a.Limit, a.Remaining, a.NextAfter)
			}
		}
	}
	slots := v.occupancies()
	if len(slots) == 0 {
		return b
	}
	_, full := v.full()
	for i, o := range slots {
		if v.hidesSlots(i) || o.Limit == core.NoLimit || o.Held < 0 {
			continue
		}
		left := o.Remaining()
		if full { // these slots refused, whatever the store has counted
			left = 0
		}
		b = appendParam(appendString(appendComma(b, start), o.Slots), ";r=", left)
	}
	return b
}

// appendState appends the i-th answer to the RateLimit that begins at start.
func appendState(b []byte, start int, d *core.Decision, s *sheet, i int, policy string, limit, left int64, next time.Duration) []byte {
	if limit == core.NoLimit || !known(d.Source, limit) {
		return b
	}
	if b = appendComma(b, start); s != nil {
		b = append(b, s.names[i]...)
	} else {
		b = appendString(b, policy)
	}
	b = appendParam(b, ";r=", left)
	if next > 0 && next != core.Never {
		b = appendParam(b, ";t=", seconds(next))
	}
	return b
}

// XRateLimit sets three common fields, which no standard defines, of the policy that decided:
//
//	X-RateLimit-Limit: 100
//	X-RateLimit-Remaining: 87
//	X-RateLimit-Reset: 8
//
// Reset is the number of seconds, rounded up, until nothing is used, or, in a refusal, the same as
// Retry-After. As in most implementations, it is not a time of day. Unknown values are omitted, and
// nothing is set for an unlimited policy, one of the service, and slots.
func XRateLimit(h http.Header, v Verdict) {
	a, ok := decider(v)
	if !ok || a.Limit == core.NoLimit || v.hides(a.Limiter) {
		return
	}
	after := a.ResetAfter
	switch {
	case !v.Decision.Allowed:
		after = a.RetryAfter
	case !v.admitted: // for want of slots
		after = time.Duration(v.retry) * time.Second
	}
	b := block{values: make([]string, 3)}
	b.set(h, "X-Ratelimit-Limit", integer(a.Limit))
	if !known(v.Decision.Source, a.Limit) {
		return
	}
	b.set(h, "X-Ratelimit-Remaining", integer(a.Remaining))
	if after != core.Never {
		b.set(h, "X-Ratelimit-Reset", integer(seconds(after)))
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
	names    []string           // of the policies, as in the fields
	refusals []problem.Document // the i-th is for a refusal by the i-th policy alone
}

func newSheet(rules []Rule) *sheet {
	s := &sheet{}
	var b []byte
	for i := range rules {
		rule := &rules[i]
		if rule.takesSlots() {
			continue
		}
		for _, p := range rule.limiter().Policies() {
			if !rule.Service {
				b = appendPolicy(b, 0, p.Name(), p.Limit(), p.Window())
			}
			s.names = append(s.names, string(appendString(nil, p.Name())))
			s.refusals = append(s.refusals, problem.QuotaExceeded(p.Name()))
		}
	}
	s.policies = string(b)
	return s
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

func integer(n int64) string { return strconv.FormatInt(min(n, maxInteger), 10) }

// seconds returns d in seconds, rounded up.
func seconds(d time.Duration) int64 {
	s := int64(d / time.Second)
	if d%time.Second > 0 {
		s++
	}
	return s
}

// A block is where the fields of a response are: the slices that are their values, and the
// text of those that differ from one response to another. It takes one allocation, where
// Header.Set makes one for each value. The slices do not overlap, because a handler may
// change or append to any of them.
type block struct {
	values []string
	text   []byte
}

// make makes the block one for so many fields. It grows if that was too few, or the text is
// long.
func (b *block) make(fields int) {
	if fields <= 2 { // what an admitted response has
		room := new(struct {
			values [2]string
			text   [64]byte
		})
		b.values, b.text = room.values[:], room.text[:0]
		return
	}
	room := new(struct {
		values [refusalFields]string
		text   [80]byte
	})
	b.values, b.text = room.values[:], room.text[:0]
}

// refusalFields is what Draft11, a refusal and its document set.
const refusalFields = 7

// cut returns the text from start on. It is not copied, and nothing writes to it any more.
func (b *block) cut(start int) string {
	text := b.text[start:]
	return unsafe.String(unsafe.SliceData(text), len(text))
}

// set sets a field, given by its canonical name.
func (b *block) set(h http.Header, name, value string) {
	if len(b.values) == 0 {
		b.values = make([]string, 2)
	}
	b.values[0] = value
	h[name] = b.values[:1:1]
	b.values = b.values[1:]
}

// add is set for a field that is a list: values already there stay. The same value is
// already there if SetFields and Refuse are both called. An empty header has none.
func (b *block) add(h http.Header, name, value string, empty bool) {
	if empty {
		b.set(h, name, value)
		return
	}
	switch had := h[name]; {
	case len(had) == 0:
		b.set(h, name, value)
	case !slices.Contains(had, value):
		h[name] = append(had, value)
	}
}
