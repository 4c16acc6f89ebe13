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
func refuse(w http.ResponseWriter, r *http.Request, a *engine.Admission, prepared *prepared, fields func(http.Header, *Verdict),
	onRefused func(http.ResponseWriter, *http.Request, *Verdict),
) {
	h := w.Header()
	p := takePage()
	defer pages.Put(p)
	p.fields(h, a, prepared, fields)
	v := p.take(5) // one for each field, since a handler may change it
	v[0], v[1], v[2], v[4] = "no-store", problem.Type, "nosniff", p.retryAfter(a)
	h["Cache-Control"] = v[0:1:1]
	if v[4] != "" {
		h["Retry-After"] = v[4:5:5]
	} else {
		delete(h, "Retry-After")
	}
	document := documentOf(a, prepared)
	framework, native := w.(refuser)
	if onRefused != nil || native {
		refusal, answered := verdict(a, false), false
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
	v[3] = document.Length
	h["Content-Type"], h["X-Content-Type-Options"], h["Content-Length"] = v[1:2:2], v[2:3:3], v[3:4:4]
	w.WriteHeader(a.Status)
	if r.Method != http.MethodHead {
		w.Write(document.Body) //nolint:errcheck // the client may have disconnected
	}
}

// documentOf returns the body of a refusal.
func documentOf(a *engine.Admission, prepared *prepared) problem.Document {
	if a.Status != http.StatusTooManyRequests {
		return problem.Blank(a.Status)
	}
	if a.Stage == engine.SlotsFull {
		return problem.QuotaExceeded(a.Limiter)
	}
	if a.Plain && prepared != nil && len(prepared.all) == 1 {
		return prepared.all[0].refusal
	}
	var names [16]string
	refused, last := names[:0], 0
	for i := range a.Decision.Len() {
		if d := a.Decision.At(i); !d.Allowed && !a.Hides(&d) {
			refused, last = append(refused, d.Policy), i
		}
	}
	if len(refused) == 1 && a.Plain && prepared != nil {
		return prepared.all[last].refusal
	}
	return problem.QuotaExceeded(refused...)
}

func (p *page) retryAfter(a *engine.Admission) string {
	if a.RetryAfter <= 0 || a.RetryAfter == core.Never {
		return ""
	}
	p.begin()
	p.number("", seconds(a.RetryAfter))
	return p.end()
}
