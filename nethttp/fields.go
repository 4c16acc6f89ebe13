package nethttp

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/backend"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/problem"
)

// RateLimitFields is for [Config].Fields: it sets RateLimit-Policy and RateLimit, which
// draft-ietf-httpapi-ratelimit-headers-11 defines. This is its default:
//
//	RateLimit-Policy: "burst";q=10;w=1, "daily";q=5000;w=86400
//	RateLimit: "burst";r=9;t=1, "daily";r=4711;t=18
//
// q is how many units a policy admits in w seconds, r how many are left, and t in how many seconds there is one more.
// Of slots, these are requests:
//
//	RateLimit-Policy: "exports";q=2;qu="concurrent-requests"
//	RateLimit: "exports";r=1
//
// Limits of the service and Unlimited are not there. If slots have refused, only they are: the units of the rates were
// given back. If a rule has [Rate].Settle and admits the last unit, there is no t: the unit may come back at any time.
func RateLimitFields(header http.Header, verdict *Verdict) {
	page := takePage()
	page.rateLimit(header, verdict.admission(), nil)
	pages.Put(page)
}

// NoFields is for [Config].Fields: it sets none.
func NoFields(http.Header, *Verdict) {}

// XRateLimitFields is for [Config].Fields: it sets X-RateLimit-Limit, X-RateLimit-Remaining and X-RateLimit-Reset of
// the one policy that decided, as far as they are known. Reset is in how many seconds everything is unused again, or if
// the request is refused, in how many it may be tried again.
func XRateLimitFields(header http.Header, verdict *Verdict) {
	admission := verdict.admission()
	for i := range admission.Answers() {
		answer := admission.At(i)
		ofSlots := admission.Stage == engine.SlotsFull
		decided := answer.Limiter == verdict.Limiter &&
			(ofSlots || answer.Policy == admission.Decision.Totals().Decider.Name)
		if !decided || admission.Hides(&answer) {
			continue
		}
		header.Set("X-Ratelimit-Limit", integer(answer.Limit))
		if !admission.Known(i, &answer) {
			return
		}
		header.Set("X-Ratelimit-Remaining", integer(answer.Remaining))
		after := answer.ResetAfter
		if verdict.Status != 0 {
			after = admission.RetryAfter
		}
		if after != core.Never {
			header.Set("X-Ratelimit-Reset", integer(seconds(after)))
		}
		return
	}
}

// describe sets the fields that describe the limits.
func (p *page) describe(
	header http.Header, admission *engine.Admission, prepared *prepared, fields func(http.Header, *Verdict),
) {
	switch {
	case admission.Answers() == 0:
	case fields != nil:
		fields(header, verdict(admission, false))
	default:
		p.rateLimit(header, admission, prepared)
	}
}

// rateLimit is RateLimitFields. What is prepared is used if all rates took part under their default plans.
func (p *page) rateLimit(header http.Header, admission *engine.Admission, prepared *prepared) {
	empty := len(header) == 0
	if prepared.applies(admission) {
		if prepared.policies == "" {
			return
		}
		p.add(header, empty, "Ratelimit-Policy", prepared.policies)
		p.open()
		for i := range prepared.byPolicy {
			one := &prepared.byPolicy[i]
			if !one.hidden {
				left, next := admission.Decision.Left(i)
				p.state(one.name, left, next, one.settles && admission.Decision.Allowed)
			}
		}
		p.add(header, empty, "Ratelimit", p.written())
		return
	}
	policies, states := p.texts(admission)
	if policies != "" {
		p.add(header, empty, "Ratelimit-Policy", policies)
	}
	if states != "" {
		p.add(header, empty, "Ratelimit", states)
	}
}

// texts returns the values of RateLimit-Policy and RateLimit, or "" for one that is not to be there.
func (p *page) texts(admission *engine.Admission) (policies, states string) {
	p.open()
	rates := admission.OfRates()
	for i := range admission.Answers() {
		answer := admission.At(i)
		if admission.Hides(&answer) {
			continue
		}
		if i < rates && admission.Decision.Dated(i) {
			answer.Window = 0 // the field is of the policy, and of other months it would be wrong
		}
		p.policy(&answer, i >= rates)
	}
	policies = p.written()
	p.open()
	for i := range admission.Answers() {
		d := admission.At(i)
		if !admission.Hides(&d) && admission.Known(i, &d) && d.Remaining != core.NoLimit {
			mayComeBack := admission.Decision.Allowed && admission.Rules.RateOf(d.Limiter).Settles
			p.state(quote(d.Policy), d.Remaining, d.NextAfter, mayComeBack)
		}
	}
	return policies, p.written()
}

// A page has room for the fields of some responses, so that a response takes less than one allocation. The
// texts that were written to it do not change, and no two values share their room: a handler may change them.
type page struct {
	values []string
	text   strings.Builder
	start  int
}

const (
	pageText   = 512
	pageValues = 32
	lineText   = 96 // most fields of a response are shorter
)

var pages = sync.Pool{New: func() any { return new(page) }}

func takePage() *page {
	p := pages.Get().(*page)
	if p.text.Cap()-p.text.Len() < lineText {
		p.text = strings.Builder{}
		p.text.Grow(pageText)
	}
	return p
}

// open begins a value, and written returns it.
func (p *page) open()           { p.start = p.text.Len() }
func (p *page) written() string { return p.text.String()[p.start:] }

func (p *page) comma() {
	if p.text.Len() > p.start {
		p.text.WriteString(", ")
	}
}

func (p *page) number(name string, n int64) {
	var b [20]byte
	p.text.WriteString(name)
	p.text.Write(strconv.AppendInt(b[:0], min(n, maxInteger), 10))
}

// policy writes an item of RateLimit-Policy.
func (p *page) policy(answer *backend.PolicyAnswer, slots bool) {
	p.comma()
	p.text.WriteString(quote(answer.Policy))
	p.number(";q=", answer.Limit)
	switch {
	case slots:
		p.text.WriteString(`;qu="concurrent-requests"`)
	case answer.Window >= time.Second:
		p.number(";w=", seconds(answer.Window))
	}
}

// state writes an item of RateLimit. If the last unit may come back, nobody knows when there is one.
func (p *page) state(name string, left int64, next time.Duration, mayComeBack bool) {
	p.comma()
	p.text.WriteString(name)
	p.number(";r=", left)
	isKnown := next > 0 && next != core.Never
	if isKnown && (left > 0 || !mayComeBack) {
		p.number(";t=", seconds(next))
	}
}

// take returns room for n values.
func (p *page) take(n int) []string {
	if len(p.values) < n {
		p.values = make([]string, pageValues)
	}
	v := p.values[:n:n]
	p.values = p.values[n:]
	return v
}

// set sets a field, by its canonical name.
func (p *page) set(header http.Header, name, value string) {
	v := p.take(1)
	v[0] = value
	header[name] = v
}

// add is set for a list: the values of guards around this one stay. An empty header has none.
func (p *page) add(header http.Header, empty bool, name, value string) {
	if !empty {
		had := header[name]
		if slices.Contains(had, value) {
			return
		} else if len(had) > 0 {
			header[name] = append(had, value)
			return
		}
	}
	p.set(header, name, value)
}

// prepared is what all responses share whose rates apply by their default plans.
type prepared struct {
	policies string // RateLimit-Policy
	byPolicy []preparedPolicy
	blocked  bool // nothing is admitted, so that is known without the store
}

// applies reports whether the fields of a response are those that are prepared: all rates took part under their default
// plans, and nothing else did. Where the store was not asked, nobody knows what is left.
func (p *prepared) applies(admission *engine.Admission) bool {
	if p == nil || admission.Stage != engine.Answered || !admission.AllDefault {
		return false
	}
	return len(admission.Claims) == 0 && (admission.Decision.Known() || p.blocked)
}

// A preparedPolicy is what does not change of a policy.
type preparedPolicy struct {
	name            string // as in the fields
	hidden, settles bool
	refusal         problem.Document
}

// prepare prepares what all responses of some rules share.
func prepare(rules *engine.Rules) *prepared {
	result := new(prepared)
	text := new(page)
	for i := range rules.Rates {
		rule := &rules.Rates[i]
		if rule.ObserveOnly {
			continue
		}
		for _, answer := range rule.Limiter.Backend().Policies() {
			hidden := rule.Service || answer.Limit == core.NoLimit
			if !hidden {
				text.policy(&answer, false)
			}
			result.blocked = len(result.byPolicy) == 0 && answer.Limit == 0 // Blocked is the only policy of its rule
			refusal := problem.QuotaExceeded(answer.Policy)
			one := preparedPolicy{quote(answer.Policy), hidden, rule.Settles, refusal}
			result.byPolicy = append(result.byPolicy, one)
		}
	}
	result.policies = text.text.String()
	return result
}

// quote returns a name as RFC 9651 writes it. Names are printable ASCII.
func quote(name string) string { return strconv.Quote(name) }

// maxInteger is the largest integer of RFC 9651.
const maxInteger = 999_999_999_999_999

func integer(n int64) string { return strconv.FormatInt(min(n, maxInteger), 10) }

// seconds rounds up.
func seconds(span time.Duration) int64 { return int64((span + time.Second - 1) / time.Second) }
