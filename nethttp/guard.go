package nethttp

import (
	"context"
	"net/http"
	"sync"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/record"
)

// Handler returns a handler that calls next for admitted requests, and refuses others. It panics if next is nil, or if
// the guard was not made by a function of this package.
//
// Where a rule has Settle, next gets a writer that looks at the response, with the Flush, Hijack and ReadFrom that the
// server's has. Where [SetCost] or [VerdictFrom] can be called, it gets a copy of the request.
//
// An adapter of a framework may hand over a writer with this method, which then gets each refusal, after
// [Config].OnRefused and with its fields set, and the problem document. It reports whether the refusal is answered;
// otherwise the guard answers it:
//
//	Refused(v *Verdict, document string) (answered bool)
func (g *Guard) Handler(next http.Handler) http.Handler {
	if g == nil || g.prepared == nil || next == nil {
		panic("headgate: nethttp: the guard or the handler is nil: see the error of nethttp.New")
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if g.config.Skip != nil && g.config.Skip(r) {
			next.ServeHTTP(w, r)
			return
		}
		var a engine.Admission
		switch {
		case !g.rules.Keys(&a, r) || !g.rules.Charge(&a, r) || !g.rules.Acquire(&a, r):
			g.tellProgram(r, &a, false)
			refuse(w, r, &a, g.prepared, g.config.Fields, g.config.OnRefused)
		case g.needsNoPassage:
			if a.Stage == engine.Answered {
				g.tellProgram(r, &a, false)
			}
			g.setFields(w.Header(), &a)
			next.ServeHTTP(w, r)
		default:
			g.passage(&a).serve(w, r, next)
		}
	})
}

func (g *Guard) tellProgram(r *http.Request, admission *engine.Admission, observeOnly bool) {
	if g.config.Observe != nil {
		g.config.Observe(r, verdict(admission, observeOnly))
	}
}

func (g *Guard) setFields(header http.Header, admission *engine.Admission) {
	page := takePage()
	page.describe(header, admission, g.prepared, g.config.Fields)
	pages.Put(page)
}

// A passage is the way of an admitted request through the handler.
type passage struct {
	context   passageContext // of the handler's request, if that is to find something in it
	self      *passage
	guard     *Guard
	admission engine.Admission
	verdict   *Verdict // nil: it is not kept

	mu    sync.Mutex
	over  bool                   // the request has been handled
	costs [engine.MaxRules]int64 // of the rates; -1: it has not charged
}

// passage returns a passage. If the verdict is kept, that is part of it.
func (g *Guard) passage(admission *engine.Admission) *passage {
	if !g.config.KeepVerdict {
		return &passage{guard: g, admission: *admission}
	}
	all := &struct {
		passage
		verdict     Verdict
		admissionAt *engine.Admission
	}{passage: passage{guard: g, admission: *admission}}
	all.admissionAt = &all.admission
	all.passage.verdict = &all.verdict
	all.verdict.fill(&all.admissionAt, false)
	return &all.passage
}

// A passageContext leads to a passage by two pointers, since package fmt prints what one points to, with some verbs.
type passageContext struct {
	context.Context

	passage **passage
}

type passageKey struct{}

// Value implements [context.Context].
func (c *passageContext) Value(key any) any {
	if key == (passageKey{}) {
		return *c.passage
	}
	return c.Context.Value(key)
}

// passageOf returns the innermost passage of a context, or nil.
func passageOf(ctx context.Context) *passage {
	p, _ := ctx.Value(passageKey{}).(*passage)
	return p
}

// serve calls next, and ends the passage when that returns or panics.
func (p *passage) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	guard := p.guard
	admission := &p.admission
	rec := (*record.Recorder)(nil)
	returned := false
	defer func() { p.end(r, rec, returned) }()
	if admission.Stage == engine.Answered || len(admission.Claims) > 0 {
		guard.tellProgram(r, admission, false)
	}
	if guard.hasObserveOnly {
		guard.rules.Observe(admission, r)
	}
	for i := range admission.Observed {
		observed := &admission.Observed[i]
		if observed.Status != 0 {
			guard.tellProgram(r, observed, true)
		}
	}
	guard.setFields(w.Header(), admission)
	if guard.costs || p.verdict != nil {
		p.noteCosts()
		p.self, p.context = p, passageContext{r.Context(), &p.self}
		r = r.WithContext(&p.context)
	}
	if guard.settles {
		rec = &record.Recorder{ResponseWriter: w}
		w = rec.Writer()
	}
	next.ServeHTTP(w, r)
	returned = true
}

// each calls a function with what was asked for the request, and by the rules that only observe.
func (p *passage) each(call func(admission *engine.Admission)) {
	call(&p.admission)
	for i := range p.admission.Observed {
		call(&p.admission.Observed[i])
	}
}

// noteCosts notes what was charged.
func (p *passage) noteCosts() {
	for i := range p.costs {
		p.costs[i] = -1
	}
	p.each(func(admission *engine.Admission) {
		charges := admission.Charges()
		for i, rule := range admission.EachRate {
			p.costs[rule] = charges[i].Units
		}
	})
}

// setCost sets the cost under the rule of a limiter, if that has Cost or Settle and has charged.
func (p *passage) setCost(limiter *core.Limiter, units int64) (found bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.guard.config.Rates {
		of := &p.guard.config.Rates[i]
		takesCost := of.Cost != nil || of.Settle != nil
		charged := !p.over && p.costs[i] >= 0
		if charged && takesCost && of.Limiter == limiter {
			p.costs[i] = units
			found = true
		}
	}
	return found
}

// end releases the slots, and settles what was charged.
func (p *passage) end(r *http.Request, rec *record.Recorder, returned bool) {
	p.admission.Release()
	p.mu.Lock()
	p.over = true
	p.mu.Unlock()
	if !p.guard.costs || p.self == nil { // an observer has panicked before the handler was called
		return
	}
	p.each(func(admission *engine.Admission) {
		charges := admission.Charges()
		actual := make([]int64, len(charges))
		for i, rule := range admission.EachRate {
			actual[i] = p.costs[rule]
			settle := p.guard.config.Rates[rule].Settle
			if settle == nil || rec.Hijacked { // nobody knows what a hijacked connection has cost
				continue
			}
			actual[i] = settle(r, Outcome{rec.Final(returned), rec.Written, actual[i]})
			if actual[i] < 0 {
				actual[i] = charges[i].Units
			}
		}
		_ = admission.Settle(r, actual) // the store's observers are told of an error
	})
}
