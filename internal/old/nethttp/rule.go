package nethttp

import (
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/limits"
	"github.com/headgate/headgate/keyfuncs"
)

// A Rule says who is limited, and how much. A guard says for how long: a guard of this package for
// the request, a guard of package websocketmw for the socket. Exactly one of Limiter, Slots, Limit
// and LimitSlots is set. Limiter and Limit limit a rate; Slots and LimitSlots limit how many are
// held at once. A field that does not belong to the one that is set, or that the guard cannot use,
// is a [ConfigError].
//
// Literals must name the fields. The functions of a rule must be safe for concurrent use.
type Rule struct {
	_ struct{}

	// Key returns the key that is charged. It is required; there is no default. If it returns
	// an error or an empty key, the request is refused.
	Key keyfuncs.Func

	// Limiter is a limit on the rate.
	Limiter *core.Limiter

	// Slots are a concurrency limit: each request, or each socket, holds a slot of its key.
	Slots *core.Slots

	// Limit has the limiters of a document. A request is charged by the limiter for its PlanName
	// and key. All rules of a guard that have a Limit or LimitSlots need one [limits.Book], whose
	// document they get at the same instant. The names of policies in it should differ between the
	// rules of a guard. New checks only the names in the default plans, as of now.
	Limit *limits.Limit

	// LimitSlots has the slots of a document, as Limit has limiters.
	LimitSlots *limits.Slots

	// Plan chooses another limiter for a request, such as a larger one for paying customers. key is
	// the charged key, which Key returned. It has the form that package keyfuncs describes, such as
	// "0:anna" by [keyfuncs.First]. Make the limiters once, with Limiter.With, and look them up
	// here. If Plan is nil or returns nil, Limiter is used, which should therefore be the smallest
	// plan. A limiter with another name or store is an error of the program: the request is refused
	// with status 500.
	Plan func(r *http.Request, key string) *core.Limiter

	// PlanSlots is Plan for Slots, whose plans Slots.With makes. While a request waits, it is
	// called some five times a second, so that a raised plan applies at once; an error then
	// changes nothing.
	PlanSlots func(r *http.Request, key string) *core.Slots

	// PlanName returns the name of a request's plan, for Limit and LimitSlots. If PlanName is
	// nil or returns an empty name, the document's default applies, as it does for a plan that
	// the document does not have. It is called again like PlanSlots.
	PlanName func(*http.Request) string

	// Cost returns the number of units that a request is charged, for a rate. If it is 0, the
	// rule does not apply: Key is not called, and the limiter is not asked. A
	// negative number is an error of the program: the request is refused with status
	// 500. A nil Cost means 1. If it depends on the path, see the package documentation
	// on routers.
	Cost func(*http.Request) int64

	// Settle returns the number of units that the request finally cost, 0 or more, for a rate,
	// when the handler is done. If they are fewer than were charged, the rest is
	// returned as far as it still counts. If they are more, all of them count, also beyond the limit,
	// and the key is refused for as long as that takes. After a negative number, which is an error of the program,
	// the charge stands. If Settle is nil, the charge stands, and if all rules have
	// neither Settle nor Report, the guard does not wrap the response.
	//
	// Warning: clients have a say in the outcome. If Settle gives back the charge for an outcome
	// that a client can cause, the client pays nothing. An example is 5xx behind a reverse proxy. A
	// client that hangs up, or sends requests that the upstream rejects, gets 502 or 504 as often
	// as it likes. Give back only for outcomes that are meant to be free, such as a successful
	// login, not for everything but some.
	//
	// The request is the one that was passed to the handler. Settle runs before the
	// response is complete, so a client may have to wait for it. The fields of the
	// response show the state before the handler ran.
	Settle func(*http.Request, Outcome) int64

	// Report returns the number of units that a request has used, 0 or more, for a rate, when the
	// handler is done, whatever the outcome. Before, the rule only checks that the key has a unit
	// left. Used units count as [core.Limiter.Report] says, also beyond the limit. Then the key is
	// refused until a unit is left. While a store over servers remembers that, a refusal needs no
	// call. 0 counts nothing, and so does a negative number, which is an error of the program.
	//
	// It is for costs that nobody can estimate, such as the bytes of a response ([BytesWritten]) or
	// the tokens of an answer without a maximum. Warning: requests in flight were all checked
	// before any of them counts. So each request of a key that runs at once may exceed the limit.
	// With Cost, an estimate from above, and Settle, none does. A rule has Report, or Cost and
	// Settle.
	//
	// The rules with Report are asked first, in a call of the store. If they admit, the other rates
	// are charged in another call. After a request has waited for slots, the rules with Report are
	// asked again. A request that is refused is not reported, nor is one that slots
	// refuse. Refused attempts do not count, also if a policy has CountDenied. The response shows
	// the state before the handler ran.
	Report func(*http.Request, Outcome) int64

	// Service marks a limit of the service, such as one on all requests together. The client is
	// not at fault, so the refusal is a 503, and the response does not show the limit.
	Service bool

	// Queue is how many requests may wait in this process for slots of a key, 0 or more. 0 means
	// that none waits. Each waits for up to the Wait of the guard's Config. They are served in the
	// order in which they came. Several users may share a line, such as the line of all. There the
	// requests of a user stay within the user's own smaller limit. The rest wait in the user's
	// line. A request that has waited for one rule, and then finds another full, needs a place in
	// the line of the other rule.
	Queue int

	// WhenFull says how to treat a socket for whose key there is no slot. The zero value is
	// [Refuse]. Only guards of package websocketmw can use another.
	WhenFull WhenFull
}

// WhenFull is how a guard treats a socket when there is no slot.
type WhenFull uint8

const (
	// Refuse refuses it.
	Refuse WhenFull = iota

	// EvictOldest closes the oldest socket of the key instead, as package websocketmw explains.
	EvictOldest
)

// takesSlots reports whether the rule is a limit on what is held at once.
func (rule *Rule) takesSlots() bool { return rule.Slots != nil || rule.LimitSlots != nil }

// limiter returns the limiter that applies unless there is a plan, as of now, or nil.
func (rule *Rule) limiter() *core.Limiter {
	if rule.Limit != nil {
		return rule.Limit.Book().View().Default(rule.Limit)
	}
	return rule.Limiter
}

// slots returns the slots that apply unless there is a plan, as of now, or nil.
func (rule *Rule) slots() *core.Slots {
	if rule.LimitSlots != nil {
		return rule.LimitSlots.Book().View().DefaultSlots(rule.LimitSlots)
	}
	return rule.Slots
}

// book returns the book of the rule, or nil.
func (rule *Rule) book() *limits.Book {
	switch {
	case rule.Limit != nil:
		return rule.Limit.Book()
	case rule.LimitSlots != nil:
		return rule.LimitSlots.Book()
	}
	return nil
}

// What a rule's name is of.
const (
	ofLimiter = "limiter"
	ofSlots   = "slots"
)

// name returns the name of the limiters or slots, and what they are.
func (rule *Rule) name() (name, what string) {
	switch {
	case rule.Limiter != nil:
		return rule.Limiter.Name(), ofLimiter
	case rule.Limit != nil:
		return rule.Limit.Name(), ofLimiter
	case rule.Slots != nil:
		return rule.Slots.Name(), ofSlots
	case rule.LimitSlots != nil:
		return rule.LimitSlots.Name(), ofSlots
	}
	return "", ""
}

// field returns the field that is the limit.
func (rule *Rule) field() string {
	switch {
	case rule.Limiter != nil:
		return "Limiter"
	case rule.Slots != nil:
		return "Slots"
	case rule.Limit != nil:
		return "Limit"
	}
	return "LimitSlots"
}

// planName returns the name of a request's plan.
func (rule *Rule) planName(r *http.Request) string {
	if rule.PlanName == nil {
		return ""
	}
	return rule.PlanName(r)
}

// view returns the book of the rule as of now, or v if that is set.
func (rule *Rule) view(v *limits.View) limits.View {
	if *v == (limits.View{}) {
		*v = rule.book().View()
	}
	return *v
}

// chooseLimiter returns the limiter of a request with the key. The view is that of all rules.
func (rule *Rule) chooseLimiter(view *limits.View, r *http.Request, key string) (*core.Limiter, error) {
	if rule.Limit != nil {
		return rule.view(view).Limiter(rule.Limit, rule.planName(r), key), nil
	}
	if rule.Plan == nil {
		return rule.Limiter, nil
	}
	l := rule.Plan(r, key)
	switch {
	case l == nil || l == rule.Limiter:
		return rule.Limiter, nil
	case l.Name() != rule.Limiter.Name():
		return nil, returned("Plan", "a limiter of another name, %q; make it with Limiter.With", l.Name())
	case l.Store() != rule.Limiter.Store():
		return nil, returned("Plan", "a limiter of another store; make it with Limiter.With")
	}
	return l, nil
}

// chooseSlots is chooseLimiter for slots.
func (rule *Rule) chooseSlots(view *limits.View, r *http.Request, key string) (*core.Slots, error) {
	if rule.LimitSlots != nil {
		return rule.view(view).Slots(rule.LimitSlots, rule.planName(r), key), nil
	}
	if rule.PlanSlots == nil {
		return rule.Slots, nil
	}
	s := rule.PlanSlots(r, key)
	switch {
	case s == nil || s == rule.Slots:
		return rule.Slots, nil
	case s.Name() != rule.Slots.Name():
		return nil, returned("PlanSlots", "slots of another name, %q; make them with Slots.With", s.Name())
	case s.Store() != rule.Slots.Store():
		return nil, returned("PlanSlots", "slots of another store; make them with Slots.With")
	}
	return s, nil
}

// faultOf is called for each fault of a rule.
type faultOf func(err error, field string)

// validate finds the faults of a rule alone. It reports whether the rule is one limit.
func (rule *Rule) validate(fault faultOf, sockets bool) bool {
	if rule.Key == nil {
		fault(errors.New("it is nil: say who is charged, with a function of package keyfuncs"), "Key")
	}
	if !rule.validateLimit(fault) {
		return false
	}
	unless := func(fine, set bool, field, use string) {
		if set && !fine {
			fault(errors.New(use), field)
		}
	}
	rate, slots := !rule.takesSlots(), rule.takesSlots()
	code := rule.Limiter != nil || rule.Slots != nil
	unless(code, rule.Plan != nil, "Plan", "the plans are those of the document: remove it, or use PlanName")
	unless(code, rule.PlanSlots != nil, "PlanSlots", "the plans are those of the document: remove it, or use PlanName")
	unless(rule.Slots == nil, rule.Plan != nil, "Plan", "it is for Limiter: remove it, or use PlanSlots")
	unless(rule.Limiter == nil, rule.PlanSlots != nil, "PlanSlots", "it is for Slots: remove it, or use Plan")
	unless(!code, rule.PlanName != nil, "PlanName", "it is for Limit and LimitSlots: remove it, or use Plan or PlanSlots")
	unless(rate, rule.Cost != nil, "Cost", "it is for rates: a request takes one slot of the rule")
	unless(rate, rule.Settle != nil, "Settle", "it is for rates: slots are released when the request is over")
	unless(rate, rule.Report != nil, "Report", "it is for rates: slots are released when the request is over")
	unless(rule.Report == nil, rule.Cost != nil || rule.Settle != nil, "Report", "there is Cost or Settle too: use Cost and Settle if the most that "+
		"a request can use is known before, and Report alone if it is known only afterwards")
	unless(!sockets, rule.Report != nil, "Report", "it is for requests: Inbound limits what a socket receives, and its handler can call core.Limiter.Report")
	unless(slots, rule.Queue != 0, "Queue", "it is for slots: nobody waits for a rate")
	unless(slots, rule.WhenFull != Refuse, "WhenFull", "it is for slots")
	if rule.Queue < 0 {
		fault(fmt.Errorf("it is %d: it must not be negative, and 0 means that none waits", rule.Queue), "Queue")
	}
	rule.validateWhenFull(fault, sockets)
	return true
}

// validateLimit reports whether the rule is one limit.
func (rule *Rule) validateLimit(fault faultOf) bool {
	var set []string
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"Limiter", rule.Limiter != nil},
		{"Slots", rule.Slots != nil},
		{"Limit", rule.Limit != nil},
		{"LimitSlots", rule.LimitSlots != nil},
	} {
		if f.set {
			set = append(set, f.name)
		}
	}
	switch len(set) {
	case 0:
		fault(errors.New("it is nil, and so are Slots, Limit and LimitSlots: make one with core.New, or set one of those"), "Limiter")
		return false
	case 1:
	default:
		fault(fmt.Errorf("%s is set too: remove one of them", set[0]), set[1])
		return false
	}
	return true
}

// validateWhenFull finds the faults of WhenFull.
func (rule *Rule) validateWhenFull(fault faultOf, sockets bool) {
	switch {
	case rule.WhenFull > EvictOldest:
		fault(fmt.Errorf("it is %d: use Refuse or EvictOldest", rule.WhenFull), "WhenFull")
	case rule.WhenFull == EvictOldest && !sockets:
		fault(errors.New("a request cannot be evicted: use Refuse, or a guard of package websocketmw"), "WhenFull")
	case rule.WhenFull == EvictOldest && rule.Queue > 0:
		fault(errors.New("there is a Queue too: who takes the place of another does not wait"), "WhenFull")
	case rule.WhenFull == EvictOldest && rule.Service:
		fault(errors.New("a limit of the service is of many people, who would close each other's sockets: use Refuse"), "WhenFull")
	}
}

// clashes returns the reasons why two rules cannot be used together.
func clashes(a, b *Rule) (errs []error) {
	if a.book() != nil && b.book() != nil && a.book() != b.book() {
		errs = append(errs, errors.New("the limits are of different books"))
	}
	switch {
	case a.takesSlots() && b.takesSlots():
		s, t := a.slots(), b.slots()
		if s.Name() == t.Name() {
			errs = append(errs, fmt.Errorf("both slots are named %q: give each a name of its own", s.Name()))
		} else if s.Store() != t.Store() && s.Store().Shared() && t.Store().Shared() {
			errs = append(errs, fmt.Errorf("slots %q and %q have different stores, both shared: use one store, or one guard for each", s.Name(), t.Name()))
		}
		return errs
	case a.takesSlots():
		return append(errs, sameName(b.limiter(), a.slots())...)
	case b.takesSlots():
		return append(errs, sameName(a.limiter(), b.slots())...)
	}
	l, m := a.limiter(), b.limiter()
	if l.Name() == m.Name() {
		return append(errs, fmt.Errorf("both limiters are named %q: they would share their state", l.Name()))
	}
	if l.Store() != m.Store() {
		errs = append(errs, fmt.Errorf("the limiters %q and %q have different stores: use one, or a guard for each", l.Name(), m.Name()))
	}
	for _, p := range m.Policies() {
		if slices.ContainsFunc(l.Policies(), func(q core.Policy) bool { return p.Name() == q.Name() }) {
			errs = append(errs, fmt.Errorf("both limiters have a policy named %q: clients could not tell them apart", p.Name()))
		}
	}
	return errs
}

// sameName returns a fault if a policy of the limiter is named like the slots.
func sameName(l *core.Limiter, s *core.Slots) []error {
	if slices.ContainsFunc(l.Policies(), func(p core.Policy) bool { return p.Name() == s.Name() }) {
		return []error{fmt.Errorf("a policy of limiter %q and the slots are both named %q: clients could not tell them apart", l.Name(), s.Name())}
	}
	return nil
}
