package rpc

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/nethttp"
)

// A Refusal is the answer to a call, or a message, that is not admitted.
type Refusal struct {
	Code   Code
	Text   string
	Fields http.Header // RateLimit, RateLimit-Policy, Retry-After and the Pushback

	retryAfter time.Duration // 0: nothing is known; core.Never: no retry can succeed
	violations []*errdetails.QuotaFailure_Violation
}

// refusal translates a verdict. As in HTTP, only that of status 429 shows what refused.
func (l *limited) refusal(ctx context.Context, verdict *nethttp.Verdict, header http.Header) *Refusal {
	f := &Refusal{Fields: header}
	f.Fields.Del("Cache-Control")
	f.Code, f.Text = codeOf(ctx, verdict)
	if f.Code != ResourceExhausted && f.Code != Unavailable {
		return f
	}
	f.retryAfter = verdict.RetryAfter
	if verdict.Err == nil && verdict.Decision.RetryAfter == core.Never {
		f.retryAfter = core.Never
		header.Set(Pushback, "-1")
	} else if f.retryAfter > 0 {
		header.Set(Pushback, strconv.FormatInt(int64((f.retryAfter+time.Millisecond-1)/time.Millisecond), 10))
	}
	if verdict.Status != http.StatusTooManyRequests {
		return f
	}
	for a := range verdict.Decision.Answers() {
		switch {
		case a.Allowed || l.service[a.Limiter]:
		case l.slots[a.Limiter]:
			f.add(a.Policy, fmt.Sprintf("%d at once", a.Limit))
		case a.Window > 0:
			f.add(a.Policy, fmt.Sprintf("%d in %v", a.Limit, a.Window))
		default:
			f.add(a.Policy, strconv.FormatInt(a.Limit, 10))
		}
	}
	return f
}

// add adds a limit that refused: a policy or slots.
func (f *Refusal) add(name, limit string) {
	if len(f.violations) == 0 {
		f.Text += ":"
	}
	f.Text += fmt.Sprintf(" %q", name)
	f.violations = append(f.violations, &errdetails.QuotaFailure_Violation{Subject: name, Description: limit})
}

// codeOf returns the code of a refusal, and its text, without keys.
func codeOf(ctx context.Context, verdict *nethttp.Verdict) (Code, string) {
	switch {
	case verdict.Err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded):
		return DeadlineExceeded, "the deadline has passed"
	case verdict.Err != nil && ctx.Err() != nil:
		return Canceled, "the call was canceled"
	case verdict.Status == http.StatusBadRequest:
		return InvalidArgument, "the call does not say who makes it"
	case verdict.Status == http.StatusInternalServerError:
		return Internal, "internal error"
	case verdict.Err != nil:
		return Unavailable, "the limits are not available"
	case verdict.Status == http.StatusServiceUnavailable: // a limit of the service, which is not shown
		return ResourceExhausted, "the service is busy"
	default:
		return ResourceExhausted, "quota exceeded"
	}
}

// Details returns what the error of a refusal tells: which limits refused, and when to try again.
func (f *Refusal) Details() (details []protoadapt.MessageV1) {
	if len(f.violations) > 0 {
		details = append(details, &errdetails.QuotaFailure{Violations: f.violations})
	}
	if f.retryAfter > 0 && f.retryAfter != core.Never {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(f.retryAfter)})
	}
	return details
}
