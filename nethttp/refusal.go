package nethttp

import (
	"net/http"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/problem"
	"github.com/headgate/headgate/internal/record"
)

// A refuser is the writer of a framework's adapter, which gets the refusal after OnRefused, and the document that
// answers it by default. It reports whether the refusal is answered.
type refuser interface {
	Refused(v *Verdict, document string) (answered bool)
}

// refuse answers a request that is not admitted.
func refuse(
	w http.ResponseWriter, r *http.Request, admission *engine.Admission, prepared *prepared,
	fields func(http.Header, *Verdict), onRefused func(http.ResponseWriter, *http.Request, *Verdict),
) {
	header := w.Header()
	page := takePage()
	defer pages.Put(page)
	page.describe(header, admission, prepared, fields)
	// Each field has a value of its own, since a handler may change it. The room for all is taken at once, in less
	// time.
	//
	//	0 Cache-Control   1 Content-Type   2 X-Content-Type-Options   3 Content-Length, set below   4 Retry-After
	values := page.take(5)
	values[0] = "no-store"
	values[1] = problem.Type
	values[2] = "nosniff"
	values[4] = page.retryAfter(admission)
	header["Cache-Control"] = values[0:1:1]
	if values[4] != "" {
		header["Retry-After"] = values[4:5:5]
	} else {
		delete(header, "Retry-After")
	}
	document := documentOf(admission, prepared)
	// OnRefused may answer, then the framework, which hears of each refusal, and else this guard does. What OnRefused
	// writes by the context of a framework goes past the recorder: then the framework says that it is answered.
	// The other fields are those of this guard's own answer.
	framework, native := w.(refuser)
	if onRefused != nil || native {
		refusal := verdict(admission, false)
		answered := false
		if onRefused != nil {
			rec := &record.Recorder{ResponseWriter: w}
			onRefused(rec.Writer(), r, refusal)
			answered = rec.Responded()
		}
		if native {
			answered = framework.Refused(refusal, document.Text) || answered
		}
		if answered {
			return
		}
	}
	values[3] = document.Length
	header["Content-Type"] = values[1:2:2]
	header["X-Content-Type-Options"] = values[2:3:3]
	header["Content-Length"] = values[3:4:4]
	w.WriteHeader(admission.Status)
	if r.Method != http.MethodHead {
		w.Write(document.Body) //nolint:errcheck // the client may have disconnected
	}
}

// documentOf returns the body of a refusal. Slots that were claimed change the fields of a refusal by a rate, and not
// its document: so what is prepared applies more often here.
func documentOf(admission *engine.Admission, prepared *prepared) problem.Document {
	if admission.Status != http.StatusTooManyRequests {
		return problem.Blank(admission.Status)
	}
	if admission.Stage == engine.SlotsFull {
		return problem.QuotaExceeded(admission.Limiter)
	}
	if admission.AllDefault && prepared != nil && len(prepared.byPolicy) == 1 {
		return prepared.byPolicy[0].refusal
	}
	var names [16]string
	refused := names[:0]
	last := 0
	for i := range admission.Decision.Len() {
		answer := admission.Decision.At(i)
		if !answer.Allowed && !admission.Hides(&answer) {
			refused = append(refused, answer.Policy)
			last = i
		}
	}
	// Under the default plans, the i-th answer is of the i-th policy that is prepared.
	if len(refused) == 1 && admission.AllDefault && prepared != nil {
		return prepared.byPolicy[last].refusal
	}
	return problem.QuotaExceeded(refused...)
}

func (p *page) retryAfter(admission *engine.Admission) string {
	if admission.RetryAfter <= 0 || admission.RetryAfter == core.Never {
		return ""
	}
	p.open()
	p.number("", seconds(admission.RetryAfter))
	return p.written()
}
