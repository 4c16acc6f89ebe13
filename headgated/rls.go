package headgated

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	commonpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/backend"
	"github.com/headgate/headgate/internal/old/nethttp"
)

// The bounds of a request of Envoy's rate limit service.
const (
	maxDescriptors    = 256
	maxDescriptorText = 4 << 10
	separators        = 2 // bytes of an entry, so that empty ones are bounded too
)

// rateLimits is Envoy's rate limit service.
type rateLimits struct {
	pb.UnimplementedRateLimitServiceServer

	s *Server
}

// service describes the service. What is no request comes to it too, or gRPC would answer that uncounted, with another code.
func service() *grpc.ServiceDesc {
	d := pb.RateLimitService_ServiceDesc
	d.Methods = []grpc.MethodDesc{{
		MethodName: d.Methods[0].MethodName,
		Handler: func(of any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			var m message
			err := decode(&m)
			return of.(rateLimits).answer(ctx, &m, err)
		},
	}}
	return &d
}

// answer answers a message, unless it did not arrive. Descriptors are charged together, all or none. One with hits of
// its own has happened, and is counted whether it fits or not.
func (r rateLimits) answer(ctx context.Context, m *message, err error) (answer *pb.RateLimitResponse, _ error) {
	begin, counts := time.Now(), r.s.metrics
	if err == nil {
		err = m.fault
	}
	if err == nil {
		answer, err = r.s.limited(ctx, &m.request)
	} else {
		counts.rls.answered(err)
	}
	counts.requests.WithLabelValues("grpc", status.Code(err).String()).Inc()
	counts.durations.WithLabelValues("grpc").Observe(time.Since(begin).Seconds())
	return answer, err
}

// An item is a descriptor of a request, and what becomes of it.
type item struct {
	matched

	limiter *backend.Limiter // nil: nothing is charged
	hits    int64
	own     bool                            // the descriptor has hits of its own, which have happened
	current *pb.RateLimitResponse_RateLimit // nil: that of the policy
	several uint32                          // units of current
	charged bool                            // the hits count
	over    bool                            // it does not fit
	retry   time.Duration                   // until it does
	status  *pb.RateLimitResponse_DescriptorStatus
}

func invalid(format string, args ...any) error {
	return status.Errorf(codes.InvalidArgument, format, args...)
}

// limited answers a request. The error has the code InvalidArgument or Unavailable.
func (s *Server) limited(ctx context.Context, q *pb.RateLimitRequest) (answer *pb.RateLimitResponse, err error) {
	defer func() { s.metrics.rls.answered(err) }()
	if err := checkRequest(q); err != nil {
		return nil, err
	}
	items := make([]item, len(q.GetDescriptors()))
	for i := range items {
		items[i].status = &pb.RateLimitResponse_DescriptorStatus{Code: pb.RateLimitResponse_OK}
	}
	c := s.current.Load()
	d := c.domains[q.GetDomain()]
	if d == nil {
		s.metrics.rls.unknownDomain.Inc()
		return s.answerOf(q, items, nil), nil
	}
	for i, of := range q.GetDescriptors() {
		if err := s.item(c, d, q, of, &items[i]); err != nil {
			return nil, err
		}
	}
	replace(items)
	calls, err := s.charge(ctx, d, items)
	if err != nil {
		return nil, err
	}
	for i := range items {
		s.metrics.rls.hits(d.name, &items[i])
	}
	return s.answerOf(q, items, calls), nil
}

// checkRequest returns what is wrong with a request whatever the configuration is.
func checkRequest(q *pb.RateLimitRequest) error {
	switch n := len(q.GetDescriptors()); {
	case q.GetDomain() == "":
		return invalid("the domain is empty")
	case n == 0:
		return invalid("there is no descriptor")
	case n > maxDescriptors:
		return invalid("there are %d descriptors, more than %d", n, maxDescriptors)
	}
	for i, d := range q.GetDescriptors() {
		text := 0
		for _, e := range d.GetEntries() {
			text += len(e.GetKey()) + len(e.GetValue()) + separators
		}
		switch {
		case len(d.GetEntries()) == 0:
			return invalid("descriptors[%d] has no entries", i)
		case text > maxDescriptorText:
			return invalid("descriptors[%d] has %d bytes, more than %d", i, text, maxDescriptorText)
		case d.GetIsNegativeHits():
			return invalid("descriptors[%d] gives hits back, which is not supported", i)
		}
	}
	return nil
}

// item finds what applies to a descriptor.
func (s *Server) item(c *configuration, d *domain, q *pb.RateLimitRequest, of *commonpb.RateLimitDescriptor, to *item) error {
	entries := make([]entry, len(of.GetEntries()))
	for i, e := range of.GetEntries() {
		entries[i] = entry{e.GetKey(), e.GetValue()}
	}
	to.matched = d.match(entries, of.GetLimit() == nil)
	to.hits = int64(max(q.GetHitsAddend(), 1))
	if own := of.GetHitsAddend(); own != nil {
		to.hits = int64(min(own.GetValue(), maxUnits))
		to.own = to.hits > 0
	}
	switch r := to.rule; {
	case of.GetLimit() != nil:
		return s.override(d, entries, of.GetLimit(), to)
	case r == nil || r.unlimited:
	case r.limit != "":
		to.limiter, _ = c.limiter(r.limit, "", to.key)
	default:
		if to.limiter = r.limiter; r.unit != pb.RateLimitResponse_RateLimit_UNKNOWN {
			to.several, to.current = 1, r.current
		}
	}
	return nil
}

// replace drops the limits that others of the request replace, but those that are unlimited. Nothing is charged for them.
func replace(items []item) {
	var names []string
	for i := range items {
		if r := items[i].rule; r != nil {
			names = append(names, r.replaces...)
		}
	}
	for i := range items {
		if r := items[i].rule; r != nil && r.name != "" && !r.unlimited && slices.Contains(names, r.name) {
			items[i].rule, items[i].limiter = nil, nil
		}
	}
}

// overall returns the code of a response, and of a refusal the time until the request is admitted. It is refused if a
// descriptor is over its limit, for the longest of their times, or if all are that have limits in quota mode, for the
// shortest.
func overall(items []item) (code pb.RateLimitResponse_Code, retry time.Duration) {
	code = pb.RateLimitResponse_OK
	quotas, over, first := 0, 0, core.Never
	for i := range items {
		it := &items[i]
		refuses := it.status.GetCode() == pb.RateLimitResponse_OVER_LIMIT
		switch {
		case it.rule != nil && it.quota && !it.shadow:
			if quotas++; refuses {
				over, first = over+1, min(first, it.retry)
			}
		case refuses:
			code, retry = pb.RateLimitResponse_OVER_LIMIT, max(retry, it.retry)
		}
	}
	if quotas > 0 && quotas == over {
		code, retry = pb.RateLimitResponse_OVER_LIMIT, max(retry, first)
	}
	return code, retry
}

func refused(items []item) bool {
	code, _ := overall(items)
	return code == pb.RateLimitResponse_OVER_LIMIT
}

// answerOf returns the response with the statuses of the items, the RateLimit fields, and of a refusal the
// body and the fields.
func (s *Server) answerOf(q *pb.RateLimitRequest, items []item, calls []*group) *pb.RateLimitResponse {
	code, retry := overall(items)
	r := &pb.RateLimitResponse{OverallCode: code, Statuses: make([]*pb.RateLimitResponse_DescriptorStatus, len(items))}
	for i := range items {
		r.Statuses[i] = items[i].status
	}
	if s.config.ResponseMetadata {
		r.DynamicMetadata = dynamicMetadata(q, items)
	}
	refused := code == pb.RateLimitResponse_OVER_LIMIT
	decided := decisionOf(calls, refused, retry)
	if decided == nil {
		return r
	}
	header, v := make(http.Header), nethttp.Verdict{Decision: decided, Allowed: !refused, RetryAfter: retry}
	v.SetFields(header)
	if refused {
		header.Set("Content-Type", nethttp.ProblemType)
		r.RawBody = v.Problem()
	}
	for name, values := range header {
		for _, value := range values {
			r.ResponseHeadersToAdd = append(r.ResponseHeadersToAdd, &corepb.HeaderValue{Key: name, Value: value})
		}
	}
	slices.SortFunc(r.GetResponseHeadersToAdd(), func(a, b *corepb.HeaderValue) int { return strings.Compare(a.GetKey(), b.GetKey()) })
	return r
}

// decisionOf returns the decision that clients see, or nil: of a request that is refused, that of the first question with
// a descriptor that is over its limit until then.
func decisionOf(calls []*group, refused bool, retry time.Duration) (d *backend.Decision) {
	decides := func(it *item) bool {
		return refused && it.status.GetCode() == pb.RateLimitResponse_OVER_LIMIT && it.retry == retry
	}
	for _, call := range calls {
		if call.shadow || call.decided.Len() == 0 {
			continue
		}
		if slices.ContainsFunc(slices.Concat(call.of...), decides) {
			return &call.decided
		}
		if d == nil {
			d = &call.decided
		}
	}
	return d
}
