package nethttp

import (
	"net/http"

	"github.com/headgate/headgate/internal/old/problem"
	"github.com/headgate/headgate/internal/record"
)

// ProblemType is the media type of [Verdict.Problem] (RFC 9457).
const ProblemType = problem.Type

// Refuse answers a request that is not admitted. It writes a refusal: the fields of
// [Verdict.SetFields], the status and the problem document, or what [Config].OnRefused
// writes instead. It does not read the request's body. A response to HEAD has no body.
// Refuse does nothing if the verdict admits.
func (g *Guard) Refuse(w http.ResponseWriter, r *http.Request, v Verdict) {
	if !v.admitted {
		g.refuse(w, r, &v)
	}
}

func (g *Guard) refuse(w http.ResponseWriter, r *http.Request, v *Verdict) {
	var b block
	b.make(refusalFields)
	v.setRefusal(w.Header(), &b)
	if g.config.OnRefused != nil {
		rec := &record.Recorder{ResponseWriter: w}
		g.config.OnRefused(rec.Writer(), r, *v)
		if rec.Responded() {
			return
		}
	}
	var room problem.Document
	v.document(&room).Write(w, r, b.values)
}

// Problem returns the body of the refusal, a problem document (RFC 9457), whose media type is
// [ProblemType]. For status 429 it is of the type quota-exceeded of
// draft-ietf-httpapi-ratelimit-headers-11, and names the policies or slots that refused. Otherwise
// it contains no more than the status. It is nil if nothing is refused.
func (v Verdict) Problem() []byte {
	if v.admitted {
		return nil
	}
	var room problem.Document
	return v.document(&room).Bytes()
}

// document returns the body of a refusal: that of the sheet, or one that it puts into room.
func (v *Verdict) document(room *problem.Document) *problem.Document {
	status := v.code()
	if status != http.StatusTooManyRequests {
		*room = problem.Blank(status)
		return room
	}
	if o, full := v.full(); full {
		*room = problem.QuotaExceeded(o.Slots)
		return room
	}
	if v.sheet != nil && v.Decision.Len() == 1 {
		return &v.sheet.refusals[0]
	}
	return v.quotaExceeded(room)
}

// quotaExceeded is document for several policies, or a limiter that is not a rule's own.
func (v *Verdict) quotaExceeded(room *problem.Document) *problem.Document {
	var names [16]string
	refused := names[:0]
	last := 0
	for i := range v.Decision.Len() {
		if a := v.Decision.Answer(i); !a.Allowed && !v.hides(a.Limiter) {
			refused = append(refused, a.Policy)
			last = i
		}
	}
	if len(refused) == 1 && v.sheet != nil {
		return &v.sheet.refusals[last]
	}
	*room = problem.QuotaExceeded(refused...)
	return room
}
