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
//
//	RESOURCE_EXHAUSTED  quota exceeded: "minute"                          Code, Text
//	retry-after: 12, grpc-retry-pushback-ms: 11250                        in Fields
//	QuotaFailure {subject: "minute", description: "60 in 1m0s"}, RetryInfo {11.25 s}   of Details
type Refusal struct {
	Code   Code
	Text   string
	Fields http.Header // RateLimit, RateLimit-Policy, Retry-After and the Pushback

	retryAfter time.Duration // 0: nothing is known; core.Never: no retry can succeed
	violations []*errdetails.QuotaFailure_Violation
}

// refusal translates a verdict. As in HTTP, only that of status 429 shows what refused.
func (l *limited) refusal(ctx context.Context, verdict *nethttp.Verdict, header http.Header) *Refusal {
	refusal := &Refusal{Fields: header}
	refusal.Fields.Del("Cache-Control") // there are no caches between calls
	refusal.Code, refusal.Text = codeOf(ctx, verdict)
	// Of all other codes a client must not believe that it helps to wait.
	if refusal.Code != ResourceExhausted && refusal.Code != Unavailable {
		return refusal
	}
	refusal.retryAfter = verdict.RetryAfter
	if verdict.Err == nil && verdict.Decision.RetryAfter == core.Never {
		refusal.retryAfter = core.Never
		header.Set(Pushback, "-1")
	} else if refusal.retryAfter > 0 {
		millis := (refusal.retryAfter + time.Millisecond - 1) / time.Millisecond
		header.Set(Pushback, strconv.FormatInt(int64(millis), 10))
	}
	if verdict.Status != http.StatusTooManyRequests {
		return refusal
	}
	// Limits of the service are shown to nobody: they say nothing of what this caller has used.
	for answer := range verdict.Decision.Answers() {
		switch {
		case answer.Allowed || l.service[answer.Limiter]:
		case l.slots[answer.Limiter]:
			refusal.add(answer.Policy, fmt.Sprintf("%d at once", answer.Limit))
		case answer.Window > 0:
			refusal.add(answer.Policy, fmt.Sprintf("%d in %v", answer.Limit, answer.Window))
		default:
			refusal.add(answer.Policy, strconv.FormatInt(answer.Limit, 10))
		}
	}
	return refusal
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
	// The context first: a store that was asked for a caller who has gone returns an error, too, and is well.
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
