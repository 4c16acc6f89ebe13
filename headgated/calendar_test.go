package headgated_test

import (
	"testing"

	commonpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/headgate/headgate/headgated"
)

// Quotas by the calendar are policies as all others: of a descriptor, and of a limit that descriptors, routes and programs
// share. A rate_limit with the unit MONTH is 30 days, as in the reference.
func TestCalendar(t *testing.T) {
	server, client := rlsClient(t, `limits:
  api: {plans: {all: {quota: calendar 3/month starting 15 in Europe/Berlin}}}
routes: [{charge: [{limit: api, key: everyone}]}]
rls:
- domain: d
  descriptors:
  - {key: own, headgate: {policy: "calendar 5/month in Europe/Berlin"}}
  - {key: shared, headgate: {limit: api}}
  - {key: month, rate_limit: {unit: MONTH, requests_per_unit: 5}}
`)
	status := func(entry string) *pb.RateLimitResponse_DescriptorStatus {
		t.Helper()
		got, err := client.ShouldRateLimit(t.Context(), &pb.RateLimitRequest{Domain: "d", Descriptors: []*commonpb.RateLimitDescriptor{d(entry)}})
		must(t, err)
		return got.GetStatuses()[0]
	}
	for i := range 6 {
		got := status("own=anna")
		if over := got.GetCode() == pb.RateLimitResponse_OVER_LIMIT; over != (i == 5) || got.GetCurrentLimit().GetRequestsPerUnit() != 5 {
			t.Errorf("%d: %v", i, got)
		}
	}
	if limit := status("month=anna").GetCurrentLimit(); limit.GetUnit() != pb.RateLimitResponse_RateLimit_MONTH || limit.GetUnitMultiplier() != nil {
		t.Errorf("%v", limit)
	}
	for i, body := range []string{`{"limit": "api", "key": "everyone"}`, `{"limit": "api", "key": "everyone", "units": 2}`, `{"limit": "api", "key": "everyone"}`} {
		w, answer := post(t, server.HTTP(), "/v1/charge", `{"charges": [`+body+`]}`)
		if answer.Allowed != (i < 2) || w.Header().Get("Ratelimit-Policy") != `"quota";q=3` {
			t.Errorf("%d: %d %v %s", i, w.Code, w.Header(), w.Body)
		}
	}
	if w := ask(server, "@", "GET", "a", "/"); w.Code != 429 || w.Header().Get("Retry-After") == "" {
		t.Errorf("%d %v", w.Code, w.Header())
	}
	if got := status("shared=everyone"); got.GetCode() != pb.RateLimitResponse_OVER_LIMIT {
		t.Errorf("%v", got)
	}
	text := "limits: {api: {plans: {all: calendar 3/month in Europe/Atlantis}}}"
	if _, err := headgated.Check(headgated.Config{Document: source(text)}); err == nil {
		t.Error("there is no such zone")
	}
}
