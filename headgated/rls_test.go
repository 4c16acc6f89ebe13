package headgated_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	commonpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/headgated"
	"github.com/headgate/headgate/internal/redistest"
	"github.com/headgate/headgate/limits"
)

// serveRLS serves, and returns a client of the gRPC door.
func serveRLS(t testing.TB, c headgated.Config) (*headgated.Server, *grpc.ClientConn) {
	t.Helper()
	c.GRPC = "127.0.0.1:0"
	s := open(t, c)
	addrs, stop := serve(t, s)
	conn, err := grpc.NewClient(addrs.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	t.Cleanup(func() {
		conn.Close()
		must(t, stop())
	})
	return s, conn
}

// rlsClient returns a client of a server with a document.
func rlsClient(t testing.TB, document string) (*headgated.Server, pb.RateLimitServiceClient) {
	t.Helper()
	s, conn := serveRLS(t, headgated.Config{Document: source(document)})
	return s, pb.NewRateLimitServiceClient(conn)
}

// d returns a descriptor of entries such as "user=anna".
func d(entries ...string) *commonpb.RateLimitDescriptor {
	to := &commonpb.RateLimitDescriptor{}
	for _, e := range entries {
		key, value, _ := strings.Cut(e, "=")
		to.Entries = append(to.Entries, &commonpb.RateLimitDescriptor_Entry{Key: key, Value: value})
	}
	return to
}

// hits returns a descriptor with hits of its own.
func hits(n uint64, entries ...string) *commonpb.RateLimitDescriptor { return hitsOf(n, d(entries...)) }

func hitsOf(n uint64, to *commonpb.RateLimitDescriptor) *commonpb.RateLimitDescriptor {
	to.HitsAddend = wrapperspb.UInt64(n)
	return to
}

// limit returns a descriptor with a limit of its own, of several units if that is not 1.
func limit(n uint32, unit int32, several uint64, entries ...string) *commonpb.RateLimitDescriptor {
	to := d(entries...)
	to.Limit = &commonpb.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: n, Unit: typev3.RateLimitUnit(unit)}
	if several != 1 {
		one := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), several)
		to.GetLimit().ProtoReflect().SetUnknown(protowire.AppendBytes(protowire.AppendTag(nil, 3, protowire.BytesType), one))
	}
	return to
}

// summary returns the codes and what remains: the overall code, and then each descriptor.
func summary(r *pb.RateLimitResponse) string {
	text := r.GetOverallCode().String()
	for _, st := range r.GetStatuses() {
		text += fmt.Sprintf(" %v:%d", st.GetCode(), st.GetLimitRemaining())
	}
	return strings.ReplaceAll(text, "OVER_LIMIT", "OVER")
}

// field returns a field of a response.
func field(r *pb.RateLimitResponse, name string) string {
	for _, h := range r.GetResponseHeadersToAdd() {
		if strings.EqualFold(h.GetKey(), name) {
			return h.GetValue()
		}
	}
	return ""
}

// rules is a domain in which windows are so long that none ends.
const rules = `limits: {api: {plans: {api: sliding-log 4/hour}}}
rls:
- domain: d
  descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 10}}
  - {key: ten, rate_limit: {unit: year, requests_per_unit: 10}}
  - {key: zero, rate_limit: {unit: hour, requests_per_unit: 0}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: watched, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: q1, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: q2, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 2}}
  - {key: qs, quota_mode: true, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: qd, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: qu, quota_mode: true, rate_limit: {unlimited: true}}
  - {key: named, rate_limit: {name: small, unit: year, requests_per_unit: 1}}
  - {key: instead, rate_limit: {unlimited: true, replaces: [{name: small}]}}
  - {key: api, headgate: {limit: api}}
  - {key: free named, rate_limit: {name: small, unlimited: true}}
  - {key: shared, value: s*, share_threshold: true, rate_limit: {unit: year, requests_per_unit: 10}}
  - {key: any*, share_threshold: true, rate_limit: {unit: year, requests_per_unit: 10}}
  - {key: bucket, headgate: {policy: token-bucket 90/90s burst 5}}
  - {key: large, headgate: {policy: fixed-window 9000000000/hour}}
- domain: e
  charge: each
  descriptors:
  - {key: q1, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: user, rate_limit: {unit: year, requests_per_unit: 2}}
  - {key: ten, rate_limit: {unit: year, requests_per_unit: 10}}
`

// A step is a request and its answer.
type step struct {
	domain string // empty: d
	addend uint32
	of     []*commonpb.RateLimitDescriptor
	want   string
}

func runSteps(t *testing.T, c pb.RateLimitServiceClient, steps []step) {
	t.Helper()
	for i, s := range steps {
		if s.domain == "" {
			s.domain = "d"
		}
		r, err := c.ShouldRateLimit(t.Context(), &pb.RateLimitRequest{Domain: s.domain, HitsAddend: s.addend, Descriptors: s.of})
		must(t, err)
		if got := summary(r); got != s.want {
			t.Errorf("%d: %s, not %s", i, got, s.want)
		}
		if refused := r.GetOverallCode() == pb.RateLimitResponse_OVER_LIMIT; refused != (len(r.GetRawBody()) > 0) || refused != (field(r, "Content-Type") == "application/problem+json") {
			t.Errorf("%d: %v", i, r)
		}
	}
}

type ds = []*commonpb.RateLimitDescriptor

func TestCharging(t *testing.T) {
	for name, steps := range map[string][]step{
		"one":                    {{of: ds{d("user=a")}, want: "OK OK:9"}, {of: ds{d("user=b")}, want: "OK OK:9"}},
		"hits of the request":    {{addend: 7, of: ds{d("user=a")}, want: "OK OK:3"}, {addend: 4, of: ds{d("user=a")}, want: "OVER OVER:3"}, {addend: 3, of: ds{d("user=a")}, want: "OK OK:0"}},
		"no limit":               {{of: ds{d("other=a"), d("user=a", "more=b")}, want: "OK" + strings.Repeat(" OK:0", 2)}},
		"no domain":              {{domain: "x", of: ds{d("user=a")}, want: "OK OK:0"}},
		"unlimited":              {{of: ds{d("free=a")}, want: fmt.Sprint("OK OK:", uint32(math.MaxUint32))}},
		"all or none":            {{addend: 8, of: ds{d("user=a")}, want: "OK OK:2"}, {addend: 3, of: ds{d("user=a"), d("ten=a")}, want: "OVER OVER:2 OK:10"}, {of: ds{d("ten=a")}, want: "OK OK:9"}},
		"each":                   {{domain: "e", addend: 3, of: ds{d("user=a"), d("ten=a")}, want: "OVER OVER:0 OK:7"}, {domain: "e", of: ds{d("ten=a")}, want: "OK OK:6"}},
		"twice":                  {{addend: 4, of: ds{d("user=a"), d("user=a")}, want: "OK OK:6 OK:2"}, {addend: 2, of: ds{d("user=a"), d("user=a")}, want: "OVER OK:0 OVER:0"}, {addend: 2, of: ds{d("user=a")}, want: "OK OK:0"}},
		"twice, each":            {{domain: "e", addend: 6, of: ds{d("ten=a"), d("ten=a")}, want: "OVER OK:4 OVER:0"}},
		"check":                  {{of: ds{hits(0, "user=a")}, want: "OK OK:10"}, {of: ds{hits(12, "user=a")}, want: "OVER OVER:0"}, {of: ds{hits(0, "user=a")}, want: "OVER OVER:0"}},
		"check at the limit":     {{of: ds{hits(10, "user=a")}, want: "OK OK:0"}, {of: ds{hits(0, "user=a")}, want: "OK OK:0"}, {of: ds{d("user=a")}, want: "OVER OVER:0"}},
		"own hits are counted":   {{of: ds{hits(9, "user=a")}, want: "OK OK:1"}, {of: ds{hits(5, "user=a"), d("ten=a")}, want: "OVER OVER:0 OK:10"}, {of: ds{d("user=a")}, want: "OVER OVER:0"}},
		"own hits and a refusal": {{addend: 10, of: ds{d("ten=a")}, want: "OK OK:0"}, {of: ds{hits(2, "user=a"), d("ten=a")}, want: "OVER OK:8 OVER:0"}},
		"own and others, twice":  {{of: ds{d("user=a"), hits(3, "user=a")}, want: "OK OK:9 OK:6"}},
		"many hits":              {{addend: math.MaxUint32, of: ds{d("user=a")}, want: "OVER OVER:0"}, {of: ds{hits(math.MaxUint64, "user=a")}, want: "OVER OVER:0"}},
		"zero":                   {{of: ds{d("zero=a")}, want: "OVER OVER:0"}, {of: ds{hits(0, "zero=a")}, want: "OK OK:0"}},
		"check of shadow":        {{of: ds{hits(9, "watched=a")}, want: "OK OK:0"}, {of: ds{hits(0, "watched=a"), d("named=a")}, want: "OK" + strings.Repeat(" OK:0", 2)}, {of: ds{hits(0, "watched=a"), d("named=a")}, want: "OVER OK:0 OVER:0"}},
		"shadow":                 {{of: ds{d("watched=a"), d("user=a")}, want: "OK OK:0 OK:9"}, {of: ds{d("watched=a"), d("user=a")}, want: "OK OK:0 OK:8"}},
		"quota": {
			{of: ds{d("q1=a"), d("q2=a")}, want: "OK OK:0 OK:1"}, {of: ds{d("q1=a"), d("q2=a")}, want: "OK OVER:0 OK:0"},
			{of: ds{d("q1=a"), d("q2=a"), d("user=a")}, want: "OVER" + strings.Repeat(" OVER:0", 2) + " OK:10"},
			{of: ds{d("user=a")}, want: "OK OK:9"},
		},
		"refused, and a quota":        {{of: ds{d("zero=a"), d("q1=a")}, want: "OVER OVER:0 OK:1"}, {of: ds{d("q1=a")}, want: "OK OK:0"}, {of: ds{d("zero=a"), d("q1=a")}, want: "OVER" + strings.Repeat(" OVER:0", 2)}},
		"own hits, and a quota":       {{of: ds{hits(11, "user=a"), d("ten=a"), d("q1=a")}, want: "OVER OVER:0 OK:10 OK:1"}, {of: ds{d("ten=a"), d("q1=a")}, want: "OK OK:9 OK:0"}},
		"refused by a quota, twice":   {{of: ds{d("q1=a")}, want: "OK OK:0"}, {addend: 4, of: ds{d("user=a"), d("user=a"), d("q1=a")}, want: "OVER" + strings.Repeat(" OK:6", 2) + " OVER:0"}, {of: ds{d("user=a")}, want: "OK OK:9"}},
		"a quota twice":               {{of: ds{d("q2=a"), d("q1=a"), d("q2=a"), d("q2=a")}, want: "OK OK:1" + strings.Repeat(" OK:0", 2) + " OVER:0"}},
		"quota, and one in shadow":    {{of: ds{d("q1=a"), d("qs=a")}, want: "OK" + strings.Repeat(" OK:0", 2)}, {of: ds{d("q1=a"), d("qs=a")}, want: "OVER OVER:0 OK:0"}},
		"quota, and one without end":  {{addend: 2, of: ds{d("q1=a"), d("qu=a")}, want: "OK OVER:0 OK:4294967295"}},
		"a quota in shadow alone":     {{addend: 2, of: ds{d("qs=a")}, want: "OK OK:0"}},
		"quota and a limit on shadow": {{addend: 2, of: ds{d("watched=a"), d("q2=a")}, want: "OK" + strings.Repeat(" OK:0", 2)}, {of: ds{d("watched=a"), d("q2=a")}, want: "OVER OK:0 OVER:0"}},
		"replaced":                    {{of: ds{d("named=a"), d("instead=a")}, want: fmt.Sprint("OK OK:0 OK:", uint32(math.MaxUint32))}, {of: ds{d("named=a")}, want: "OK OK:0"}, {of: ds{d("named=a")}, want: "OVER OVER:0"}},
		"replaced, but unlimited":     {{of: ds{d("free named=a"), d("instead=a")}, want: "OK" + strings.Repeat(fmt.Sprint(" OK:", uint32(math.MaxUint32)), 2)}},
		"own limits neither replace nor are replaced": {
			{of: ds{limit(5, 6, 1, "named=a"), d("instead=a")}, want: fmt.Sprint("OK OK:4 OK:", uint32(math.MaxUint32))},
			{of: ds{d("named=a"), limit(5, 6, 1, "instead=a")}, want: "OVER OVER:0 OK:5"},
		},
		"shared":                         {{of: ds{d("shared=s1"), d("shared=s2"), d("any1=a"), d("any1=b"), d("any2=a")}, want: "OK OK:9 OK:8 OK:9 OK:8 OK:9"}},
		"shared, and own limits":         {{of: ds{d("shared=s1")}, want: "OK OK:9"}, {of: ds{limit(20, 6, 1, "shared=s1")}, want: "OK OK:19"}, {of: ds{d("shared=s2")}, want: "OK OK:8"}},
		"checks in turn, each":           {{domain: "e", of: ds{hits(0, "ten=a"), hits(11, "ten=a"), hits(0, "ten=a")}, want: "OVER OK:10" + strings.Repeat(" OVER:0", 2)}, {domain: "e", of: ds{limit(20, 6, 1, "ten=a"), d("ten=a")}, want: "OVER OK:8 OVER:0"}},
		"checks of several limits, each": {{domain: "e", of: ds{hitsOf(0, limit(20, 6, 1, "ten=a")), hits(0, "ten=a")}, want: "OK OK:20 OK:10"}},
		"quotas in turn, each":           {{domain: "e", of: ds{d("q1=a"), limit(5, 6, 1, "q1=a")}, want: "OK OK:0 OK:3"}},
		"weeks":                          {{of: ds{limit(2, 7, 1, "user=a")}, want: "OK OK:1"}},
		"of a limit":                     {{addend: 4, of: ds{d("api=a")}, want: "OK OK:0"}, {of: ds{d("api=a"), d("user=a")}, want: "OVER OVER:0 OK:10"}},
		"clamped":                        {{of: ds{d("large=a")}, want: fmt.Sprint("OK OK:", uint32(math.MaxUint32))}},
		"empty value":                    {{of: ds{d("user=")}, want: "OK OK:9"}},
		"own limit":                      {{addend: 9, of: ds{d("user=a")}, want: "OK OK:1"}, {of: ds{limit(20, 6, 1, "user=a")}, want: "OK OK:10"}, {of: ds{limit(2, 4, 1, "user=a")}, want: "OK OK:1"}, {of: ds{limit(2, 4, 7, "user=a")}, want: "OK OK:1"}},
		"own, no rule":                   {{of: ds{limit(2, 4, 1, "x=a")}, want: "OK OK:1"}, {of: ds{limit(2, 4, 1, "x=b")}, want: "OK OK:1"}, {of: ds{limit(2, 4, 1, "y=a")}, want: "OK OK:1"}, {of: ds{limit(3, 4, 1, "x=a")}, want: "OK OK:1"}},
		"own, of 0":                      {{of: ds{limit(0, 4, 1, "user=a")}, want: "OVER OVER:0"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, c := rlsClient(t, rules)
			runSteps(t, c, steps)
		})
	}
}

// No two rules have one count, and dots in domains and keys are texts as others.
func TestPathsAreApart(t *testing.T) {
	_, c := rlsClient(t, `rls:
- domain: edge
  descriptors:
  - {key: api.user, rate_limit: {unit: year, requests_per_unit: 2}}
  - {key: api, descriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 3}}]}
- domain: edge.api
  descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 4}}
- domain: YEAR
  descriptors:
  - {key: "1", descriptors: [{key: edge, descriptors: [{key: api.user, rate_limit: {unit: year, requests_per_unit: 5}}]}]}
`)
	runSteps(t, c, []step{
		{domain: "edge.api", of: ds{d("user=a")}, want: "OK OK:3"},
		{domain: "edge", of: ds{d("api.user=a")}, want: "OK OK:1"},
		{domain: "edge", of: ds{d("api.user=1:a,1:b,"), d("api=a", "user=b")}, want: "OK OK:1 OK:2"},
		{domain: "edge", of: ds{limit(9, 6, 1, "x.y=a"), limit(9, 6, 1, "x=1:a,1:b,", "y=b"), limit(9, 6, 2, "api.user=a"), limit(9, 5, 1, "api.user=a")}, want: "OK" + strings.Repeat(" OK:8", 4)},
		{domain: "YEAR", of: ds{d("1=a", "edge=b", "api.user=c")}, want: "OK OK:4"},
	})
}

// More descriptors than a call of package core takes are counted in several, and refused if they are to be
// charged together.
func TestManyDescriptors(t *testing.T) {
	_, c := rlsClient(t, rules)
	all := make(ds, 256)
	for i := range all {
		all[i] = d(fmt.Sprint("user=", i))
	}
	runSteps(t, c, []step{{of: all[:64], want: "OK" + strings.Repeat(" OK:9", 64)}, {domain: "e", of: all, want: "OK" + strings.Repeat(" OK:1", 256)}})
	if _, err := c.ShouldRateLimit(t.Context(), &pb.RateLimitRequest{Domain: "d", Descriptors: all[:65]}); status.Code(err) != codes.InvalidArgument {
		t.Error(err)
	}
}

// Equal descriptors that are counted in any case take one call, and have statuses as if each had its own.
func TestEqualDescriptors(t *testing.T) {
	s, c := rlsClient(t, rules)
	equal := slices.Repeat(ds{d("ten=a")}, 256)
	runSteps(t, c, []step{{domain: "e", of: equal, want: "OVER OK:9 OK:8 OK:7 OK:6 OK:5 OK:4 OK:3 OK:2 OK:1 OK:0" + strings.Repeat(" OVER:0", 246)}})
	if got := metric(t, s, "headgate_settlements_total"); !strings.HasSuffix(got, " 1") {
		t.Error(got)
	}
	runSteps(t, c, []step{
		{domain: "e", of: ds{hits(7, "ten=b"), hits(5, "ten=b"), hits(1, "ten=b")}, want: "OVER OK:3" + strings.Repeat(" OVER:0", 2)}, // 12 are used before the last
		{domain: "e", of: ds{hits(7, "ten=c"), hits(0, "ten=c"), d("user=c"), hits(3, "ten=c"), hits(0, "ten=c")}, want: "OK" + strings.Repeat(" OK:3", 2) + " OK:1" + strings.Repeat(" OK:0", 2)},
		{domain: "e", addend: math.MaxUint32, of: slices.Repeat(ds{hits(math.MaxUint64, "ten=d")}, 3), want: "OVER" + strings.Repeat(" OVER:0", 3)},
		{domain: "e", of: slices.Repeat(ds{limit(0, 4, 1, "ten=e")}, 2), want: "OVER" + strings.Repeat(" OVER:0", 2)},
		{domain: "e", of: ds{limit(3, 6, 1, "ten=f"), d("ten=f"), limit(3, 6, 1, "ten=f"), d("ten=f")}, want: "OK OK:2 OK:8 OK:0 OK:6"},
	})
}

func TestInvalid(t *testing.T) {
	s, conn := serveRLS(t, headgated.Config{Document: source(rules)})
	c := pb.NewRateLimitServiceClient(conn)
	back := d("user=a")
	back.IsNegativeHits = true
	for name, q := range map[string]*pb.RateLimitRequest{
		"no domain":         {Descriptors: ds{d("user=a")}},
		"no descriptors":    {Domain: "d"},
		"no entries":        {Domain: "d", Descriptors: ds{d()}},
		"many":              {Domain: "d", Descriptors: slices.Repeat(ds{d("user=a")}, 257)},
		"empty entries":     {Domain: "d", Descriptors: ds{d(slices.Repeat([]string{"="}, 2049)...)}},
		"long":              {Domain: "d", Descriptors: ds{d("user=" + strings.Repeat("a", 4096))}},
		"hits given back":   {Domain: "d", Descriptors: ds{back}},
		"unit 0":            {Domain: "d", Descriptors: ds{limit(1, 0, 1, "user=a")}},
		"unit 8":            {Domain: "d", Descriptors: ds{limit(1, 8, 1, "user=a")}},
		"unit 99":           {Domain: "d", Descriptors: ds{limit(1, 99, 1, "user=a")}},
		"multiplier 0":      {Domain: "d", Descriptors: ds{limit(1, 1, 0, "user=a")}},
		"a multiplier":      {Domain: "d", Descriptors: ds{limit(1, 6, math.MaxUint32, "user=a")}},
		"two for one count": {Domain: "d", Descriptors: ds{d("user=a"), limit(20, 6, 1, "user=a")}},
	} {
		if _, err := c.ShouldRateLimit(t.Context(), q); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	large := make(ds, 200)
	for i := range large {
		large[i] = d("user=" + strings.Repeat("a", 1000))
	}
	for name, q := range map[string]proto.Message{"large": &pb.RateLimitRequest{Domain: "d", Descriptors: large}, "no request": wrapperspb.Bytes([]byte{0xff})} {
		err := conn.Invoke(t.Context(), pb.RateLimitService_ShouldRateLimit_FullMethodName, q, new(pb.RateLimitResponse))
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	runSteps(t, c, []step{{of: ds{d("user=a")}, want: "OK OK:9"}})
	if got := metric(t, s, "ratelimit_service_should_rate_limit_error"); !strings.Contains(got, `{err_type="service_error"} 15`) {
		t.Error(got)
	}
	if got := metric(t, s, `headgated_requests_total{code="InvalidArgument",path="grpc"}`); !strings.HasSuffix(got, " 15") {
		t.Error(got)
	}
}

// What an answer tells beside its codes.
func TestAnswer(t *testing.T) {
	_, c := rlsClient(t, rules)
	ask := func(of ...*commonpb.RateLimitDescriptor) *pb.RateLimitResponse {
		t.Helper()
		r, err := c.ShouldRateLimit(t.Context(), &pb.RateLimitRequest{Domain: "d", Descriptors: of})
		must(t, err)
		return r
	}
	multiplier := func(l *pb.RateLimitResponse_RateLimit) string { // field 4, which is the last: not all descriptions have it
		plain := &pb.RateLimitResponse_RateLimit{RequestsPerUnit: l.GetRequestsPerUnit(), Unit: l.GetUnit(), Name: l.GetName()}
		known, err := proto.Marshal(plain)
		must(t, err)
		all, err := proto.Marshal(l)
		must(t, err)
		return fmt.Sprintf("%x", bytes.TrimPrefix(all, known))
	}
	r := ask(d("named=a"))
	if l := r.GetStatuses()[0].GetCurrentLimit(); l.GetRequestsPerUnit() != 1 || l.GetUnit() != pb.RateLimitResponse_RateLimit_YEAR || l.GetName() != "small" || multiplier(l) != "" {
		t.Error(l)
	}
	if field(r, "RateLimit-Policy") != `"small";q=1;w=31536000` || !strings.HasPrefix(field(r, "RateLimit"), `"small";r=0;t=`) || field(r, "Retry-After") != "" {
		t.Error(r)
	}
	r = ask(d("named=a"))
	var problem struct {
		Status   int
		Violated []string `json:"violated-policies"`
	}
	must(t, json.Unmarshal(r.GetRawBody(), &problem))
	if problem.Status != 429 || !slices.Equal(problem.Violated, []string{"small"}) || field(r, "Retry-After") == "" {
		t.Errorf("%+v %v", problem, r)
	}
	l := ask(d("bucket=a")).GetStatuses()[0].GetCurrentLimit()
	if l.GetUnit() != pb.RateLimitResponse_RateLimit_SECOND || l.GetRequestsPerUnit() == 0 {
		t.Error(l)
	}
	r = ask(limit(3, 1, 30, "x=a"))
	if l := r.GetStatuses()[0].GetCurrentLimit(); l.GetRequestsPerUnit() != 3 || l.GetUnit() != pb.RateLimitResponse_RateLimit_SECOND || multiplier(l) != "2202081e" {
		t.Error(l, multiplier(l))
	}
	for _, of := range []*commonpb.RateLimitDescriptor{d("zero=a"), hits(0, "zero=a"), d("user=new"), hits(0, "user=newer"), limit(3, 1, 30, "x=b")} {
		reset := ask(of).GetStatuses()[0].GetDurationUntilReset()
		if reset.GetSeconds() < 1 || reset.GetNanos() != 0 || reset.AsDuration() > 365*24*time.Hour {
			t.Errorf("%v: %v", of, reset)
		}
	}
	for _, of := range []*commonpb.RateLimitDescriptor{d("free=a"), d("none=a")} {
		if st := ask(of).GetStatuses()[0]; st.GetCurrentLimit() != nil || st.GetDurationUntilReset() != nil {
			t.Error(st)
		}
	}
	ask(d("q1=c"), d("qd=c"))
	r = ask(d("q1=c"), d("qd=c"))
	if retry, err := strconv.Atoi(field(r, "Retry-After")); err != nil || retry > 24*60*60 || !strings.HasPrefix(field(r, "RateLimit-Policy"), `"d.qd"`) {
		t.Error("the first quota that admits again:", r)
	}
	if r = ask(d("watched=c")); len(r.GetResponseHeadersToAdd()) > 0 {
		t.Error("a limit in shadow mode is told:", r)
	}
	if r = ask(d("watched=c"), d("user=c"), d("qs=c")); field(r, "RateLimit-Policy") != `"d.user";q=10;w=31536000` {
		t.Error("a limit in shadow mode is told:", r)
	}
	for name, of := range map[string]ds{"own hits": {hits(99, "user=z")}, "quotas": {hits(9, "q1=z"), hits(9, "q2=z")}} { // package core refuses neither
		if r := ask(of...); r.GetOverallCode() != pb.RateLimitResponse_OVER_LIMIT || field(r, "Retry-After") == "" || len(r.GetRawBody()) == 0 || field(r, "RateLimit") == "" {
			t.Errorf("%s: %v", name, r)
		}
	}
}

// A change of a configuration keeps the counts of what stays, and one with a fault changes nothing.
func TestRLSReload(t *testing.T) {
	dir := t.TempDir()
	put := func(name, text string) { must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600)) }
	put("a.yaml", "domain: d\ndescriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 10}}]\n")
	put(".hidden", "no: yaml: at all")
	s, conn := serveRLS(t, headgated.Config{EnvoyConfig: dir})
	c := pb.NewRateLimitServiceClient(conn)
	runSteps(t, c, []step{{addend: 3, of: ds{d("user=a")}, want: "OK OK:7"}})
	put("a.yaml", "domain: d\ndescriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 20}}]\n")
	put("b.yaml", "domain: e\ndescriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 2}}]\n")
	must(t, s.Reload(t.Context()))
	runSteps(t, c, []step{{of: ds{d("user=a")}, want: "OK OK:16"}, {domain: "e", of: ds{d("user=a")}, want: "OK OK:1"}})
	loads := func(applied, failed int) {
		t.Helper()
		if got, want := metric(t, s, "ratelimit_service_config_load_"), fmt.Sprintf("ratelimit_service_config_load_error %d\nratelimit_service_config_load_success %d", failed, applied); got != want {
			t.Errorf("%s, not %s", got, want)
		}
	}
	loads(2, 0)
	put("b.yaml", "domain: d\n")
	if err := s.Reload(t.Context()); err == nil || !strings.Contains(err.Error(), "b.yaml:1:1: ") || !strings.Contains(err.Error(), "-merge-domains") {
		t.Error(err)
	}
	runSteps(t, c, []step{{domain: "e", of: ds{d("user=a")}, want: "OK OK:0"}})
	loads(2, 1)
}

// Two servers on one Redis admit exactly the limit, of ten times as many requests.
func TestTwoServersOneRedis(t *testing.T) {
	redis := redistest.Start(t)
	var clients [2]pb.RateLimitServiceClient
	for i := range clients {
		_, conn := serveRLS(t, headgated.Config{
			Document: source(strings.Replace(rules, "requests_per_unit: 10}", "requests_per_unit: 100}", 1)),
			Redis:    "redis://" + redis.Addr(), Timeout: 10 * time.Second, Failure: redisstore.FailClosed,
		})
		clients[i] = pb.NewRateLimitServiceClient(conn)
	}
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 125 {
				r, err := clients[i%2].ShouldRateLimit(t.Context(), &pb.RateLimitRequest{Domain: "d", Descriptors: ds{d("user=a")}})
				if err != nil {
					t.Error(err)
					return
				}
				if r.GetOverallCode() == pb.RateLimitResponse_OK {
					admitted.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if n := admitted.Load(); n != 100 {
		t.Errorf("%d are admitted, not 100", n)
	}
}

// A domain says who decides for it without Redis.
func TestFailureOfDomain(t *testing.T) {
	document := func(failure string) limits.Source {
		return source("rls: [{domain: d, failure: " + failure + ", descriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 1}}]}]")
	}
	for _, test := range []struct {
		store  redisstore.Failure
		domain string
		want   string // of the second request
	}{
		{redisstore.FailLocal, "local", "OVER OVER:0"},
		{redisstore.FailLocal, "open", "OK OK:0"},
		{redisstore.FailLocal, "closed", "Unavailable"},
		{redisstore.FailOpen, "open", "OK OK:0"},
		{redisstore.FailOpen, "closed", "Unavailable"},
		{redisstore.FailClosed, "open", "OK OK:0"},
		{redisstore.FailClosed, "closed", "Unavailable"},
		{redisstore.FailOpen, "local", "rls[0].failure: that needs"},
		{redisstore.FailClosed, "local", "rls[0].failure: that needs"},
	} {
		config := headgated.Config{Document: document(test.domain), Redis: "redis://127.0.0.1:1", Failure: test.store}
		if strings.HasPrefix(test.want, "rls") {
			if _, err := headgated.New(config); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v %s: %v", test.store, test.domain, err)
			}
			continue
		}
		_, conn := serveRLS(t, config)
		got := ""
		for range 2 {
			r, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), &pb.RateLimitRequest{Domain: "d", Descriptors: ds{d("user=a")}})
			if got = summary(r); err != nil {
				got = status.Code(err).String()
			}
		}
		if got != test.want {
			t.Errorf("%v %s: %s, not %s", test.store, test.domain, got, test.want)
		}
	}
}

// Limits that requests bring take bounded memory, whatever their number, and the ones that were forgotten
// go on with their counts.
func TestOverridesAreBounded(t *testing.T) {
	s, c := rlsClient(t, rules)
	for i := range uint32(5000) {
		runSteps(t, c, []step{{of: ds{limit(10+i, 5, 1, "x=a")}, want: fmt.Sprintf("OK OK:%d", 9)}})
	}
	if n := s.Overrides(); n != 1024 {
		t.Errorf("there are %d limiters", n)
	}
}

func TestRLSMetrics(t *testing.T) {
	s, c := rlsClient(t, strings.Replace(rules, "{key: ten,", "{key: ten, value_to_metric: true,", 1))
	runSteps(t, c, []step{
		{addend: 9, of: ds{d("user=a")}, want: "OK OK:1"}, {addend: 2, of: ds{d("user=a")}, want: "OVER OVER:1"}, {of: ds{d("ten=a")}, want: "OK OK:9"},
		{addend: 2, of: ds{d("watched=a")}, want: "OK OK:0"}, {domain: "none", of: ds{d("user=a")}, want: "OK OK:0"},
	})
	for _, line := range []string{
		`total_hits{domain="d",key1="user",key2=""} 11`, `within_limit{domain="d",key1="user",key2=""} 9`, `near_limit{domain="d",key1="user",key2=""} 9`,
		`over_limit{domain="d",key1="user",key2=""} 2`, `within_limit{domain="d",key1="ten_a",key2=""} 1`, `shadow_mode{domain="d",key1="watched",key2=""} 2`,
	} {
		if got := metric(t, s, "ratelimit_service_rate_limit_"+line[:strings.Index(line, "{")+1]); !strings.Contains(got, line) {
			t.Errorf("no %s in %s", line, got)
		}
	}
	if got := metric(t, s, `headgated_requests_total{code="OK",path="grpc"}`); !strings.HasSuffix(got, " 5") {
		t.Error(got)
	}
	if got := metric(t, s, "headgated_rls_unknown_domain_total"); !strings.HasSuffix(got, " 1") {
		t.Error(got)
	}
}

// What clients send into labels takes bounded memory, and no series from the texts of the configuration.
func TestSeriesAreBounded(t *testing.T) {
	s, c := rlsClient(t, `rls:
- domain: a
  descriptors:
  - {key: user, value_to_metric: true, rate_limit: {unit: year, requests_per_unit: 2}}
  - {key: all, detailed_metric: true, rate_limit: {unit: year, requests_per_unit: 2}}
- domain: b
  descriptors:
  - {key: plain, rate_limit: {unit: year, requests_per_unit: 2}}
  - {key: exact, value: v, detailed_metric: true, rate_limit: {unit: year, requests_per_unit: 2}}
`)
	const prefix = "ratelimit_service_rate_limit_total_hits"
	for i := range 200 { // half of them are of values, and half of keys
		q := &pb.RateLimitRequest{Domain: "a"}
		for j := range 64 {
			text := fmt.Sprint(strings.Repeat("ü", 300), i, "-", j)
			q.Descriptors = append(q.Descriptors, []*commonpb.RateLimitDescriptor{d("user=" + text), d("all=" + text), limit(1, 4, 1, text+"=x"), limit(1, 4, 1, "x=y", text+"=x")}[j%4])
		}
		_, err := c.ShouldRateLimit(t.Context(), q)
		must(t, err)
	}
	runSteps(t, c, []step{{domain: "b", of: ds{d("plain=x"), d("exact=v")}, want: "OK" + strings.Repeat(" OK:1", 2)}})
	lines := strings.Split(metric(t, s, prefix), "\n")
	for _, want := range []string{`{domain="a",key1="other",key2=""} 2800`, `{domain="b",key1="plain",key2=""} 1`, `{domain="b",key1="exact_v",key2=""} 1`} {
		if !slices.Contains(lines, prefix+want) {
			t.Errorf("there is no %s", want)
		}
	}
	if n := len(lines); n != 10_000+3 {
		t.Errorf("there are %d series", n)
	}
	if line := slices.MaxFunc(lines, func(a, b string) int { return len(a) - len(b) }); len(line) > 256 {
		t.Errorf("a line has %d bytes: %s", len(line), line)
	}
}

func TestJSON(t *testing.T) {
	s := open(t, headgated.Config{Document: source(rules)})
	ask := func(body string) (int, string) {
		w := httptest.NewRecorder()
		s.HTTP().ServeHTTP(w, httptest.NewRequest("POST", "/json", strings.NewReader(body)))
		return w.Code, strings.ReplaceAll(w.Body.String(), " ", "")
	}
	one := `{"domain": "d", "descriptors": [{"entries": [{"key": "named", "value": "a"}]}]}`
	if code, body := ask(one); code != 200 || !strings.Contains(body, `"overallCode":"OK"`) {
		t.Error(code, body)
	}
	if code, body := ask(one); code != 429 || !strings.Contains(body, `"overallCode":"OVER_LIMIT"`) {
		t.Error(code, body)
	}
	for body, want := range map[string]int{"{": 400, `{"domain": "d"}`: 400, strings.Repeat(" ", 64<<10+1): 413} {
		if code, got := ask(body); code != want {
			t.Error(code, got)
		}
	}
	w := httptest.NewRecorder()
	if s.HTTP().ServeHTTP(w, httptest.NewRequest("GET", "/healthcheck", nil)); w.Code != 200 || w.Body.String() != "OK\n" {
		t.Error(w.Code, w.Body)
	}
}

// A document without limits has none, whatever the name.
func TestNoLimits(t *testing.T) {
	const bare = "rls: [{domain: d, descriptors: [{key: k, headgate: {policy: sliding-log 1/hour}}]}]"
	s := open(t, headgated.Config{Document: source(bare)})
	if w, got := post(t, s.HTTP(), "/v1/charge", `{"charges": [{"limit": "none", "key": "a"}]}`); w.Code != 404 {
		t.Error(w.Code, got)
	}
	w := httptest.NewRecorder()
	s.Admin().ServeHTTP(w, httptest.NewRequest("GET", "/debug/headgate/json", nil))
	if strings.Contains(w.Body.String(), "none") {
		t.Error(w.Body)
	}
	for _, c := range []headgated.Config{
		{Document: source(strings.Replace(bare, "policy: sliding-log 1/hour", "limit: none", 1))},
		{EnvoyConfig: t.TempDir()},
	} {
		if c.EnvoyConfig != "" {
			must(t, os.WriteFile(filepath.Join(c.EnvoyConfig, "d.yaml"), []byte("domain: d\ndescriptors: [{key: k, headgate: {limit: none}}]"), 0o600))
		}
		if _, err := headgated.New(c); err == nil || !strings.Contains(err.Error(), "no such limit") {
			t.Error(err)
		}
	}
}

// Who watches the health of the service does not hold up its end.
func TestGRPCHealth(t *testing.T) {
	s := open(t, headgated.Config{Document: source(rules), GRPC: "127.0.0.1:0", Drain: time.Hour})
	addrs, stop := serve(t, s)
	conn, err := grpc.NewClient(addrs.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	defer conn.Close()
	c := healthpb.NewHealthClient(conn)
	for _, name := range []string{"", "ratelimit"} {
		r, err := c.Check(t.Context(), &healthpb.HealthCheckRequest{Service: name})
		if err != nil || r.GetStatus() != healthpb.HealthCheckResponse_SERVING {
			t.Error(name, r, err)
		}
	}
	w, err := c.Watch(t.Context(), &healthpb.HealthCheckRequest{})
	must(t, err)
	if r, err := w.Recv(); err != nil || r.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Error(r, err)
	}
	_, err = conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true}, healthpb.Health_Watch_FullMethodName) // it does not say what it watches
	must(t, err)
	must(t, stop())
}

// The door of Envoy takes the clients that the door of programs takes.
func TestGRPCWithTLS(t *testing.T) {
	ours, dir := newAuthority(t), t.TempDir()
	c := headgated.Config{Document: source(rules), GRPC: "127.0.0.1:0"}
	c.TLS.Cert, c.TLS.Key = ours.issue(dir, "server")
	c.TLS.ClientCA = ours.file(filepath.Join(dir, "ca.crt"), "CERTIFICATE", ours.cert.Raw)
	c.TLS.ClientSAN = []string{"envoy"}
	addrs, _ := serve(t, open(t, c))
	roots := x509.NewCertPool()
	roots.AddCert(ours.cert)
	for name, want := range map[string]codes.Code{"envoy": codes.OK, "envoys": codes.Unavailable} {
		pair, err := tls.LoadX509KeyPair(ours.issue(t.TempDir(), name))
		must(t, err)
		conn, err := grpc.NewClient(addrs.GRPC, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}})))
		must(t, err)
		defer conn.Close()
		_, err = pb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), &pb.RateLimitRequest{Domain: "d", Descriptors: ds{d("user=a")}})
		if status.Code(err) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// No log, metric, page, answer or fault has a value of a descriptor.
func TestRLSTellsNothing(t *testing.T) {
	for _, failure := range []redisstore.Failure{redisstore.FailLocal, redisstore.FailClosed} {
		l, p := &log{}, newPage(rules)
		s := open(t, headgated.Config{
			Document: p.load, Logger: slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug})), Redis: "redis://127.0.0.1:1", Failure: failure,
		})
		var texts []string
		for _, key := range []string{"user", "zero", "watched", "bucket", "other"} {
			for _, more := range []string{"", `, "limit": {"requestsPerUnit": 1, "unit": "HOUR"}`, `, "limit": {"requestsPerUnit": 1}`, `, "hitsAddend": "99"`} {
				w := httptest.NewRecorder()
				s.HTTP().ServeHTTP(w, httptest.NewRequest("POST", "/json", strings.NewReader(
					`{"domain": "d", "descriptors": [{"entries": [{"key": "`+key+`", "value": "geheim"}]`+more+`}]}`)))
				texts = append(texts, w.Body.String())
			}
		}
		for _, broken := range []string{"{key: user, value: geheim}, {key: user, value: geheim}", "{key: a, value: geheim, share_threshold: true}", "{key: a, value: geheim, rate_limit: {}}"} {
			p.text.Store("rls: [{domain: d, descriptors: [" + broken + "]}]")
			err := s.Reload(t.Context())
			if err == nil {
				t.Fatal(broken)
			}
			texts = append(texts, err.Error())
		}
		w := httptest.NewRecorder()
		s.Admin().ServeHTTP(w, httptest.NewRequest("GET", "/debug/headgate/json", nil))
		for _, text := range append(texts, metric(t, s, ""), l.String(), w.Body.String()) {
			if strings.Contains(text, "geheim") {
				t.Error(text)
			}
		}
	}
}

// The words of YAML 1.1 are taken as the reference takes them.
func TestBooleans(t *testing.T) {
	for word, is := range map[string]bool{"true": true, "True": true, "yes": true, "ON": true, "y": true, "false": false, "No": false, "off": false, "n": false, "FALSE": false} {
		_, c := rlsClient(t, `rls: [{domain: d, descriptors: [{key: w, shadow_mode: `+word+`, rate_limit: {unit: year, requests_per_unit: 1}}]}]`)
		want := map[bool]string{true: "OK OK:0", false: "OVER OVER:0"}[is]
		runSteps(t, c, []step{{of: ds{d("w=a")}, want: "OK OK:0"}, {of: ds{d("w=a")}, want: want}})
	}
}

// A limit of a key and another of a key and value do not share a count because their texts are equal.
func TestEqualTexts(t *testing.T) {
	_, c := rlsClient(t, `rls:
- domain: d
  descriptors:
  - {key: a_b, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: c, value: d_e, rate_limit: {unit: year, requests_per_unit: 1}}
`)
	runSteps(t, c, []step{
		{of: ds{d("a_b=b")}, want: "OK OK:0"}, {of: ds{d("a=b")}, want: "OK OK:0"}, {of: ds{d("a=b")}, want: "OVER OVER:0"},
		{of: ds{d("c=d_e")}, want: "OK OK:0"}, {of: ds{d("c_d=e")}, want: "OK OK:0"}, {of: ds{d("c_d=e")}, want: "OVER OVER:0"},
	})
}

// A refusal that is known without the store is one, though others have no decision.
func TestRefusalsNeedNoStore(t *testing.T) {
	for name, of := range map[string]ds{"alone": {d("zero=a")}, "beside a quota": {d("zero=a"), d("q1=a")}, "beside hits that happened": {hits(1, "user=a"), d("zero=a")}} {
		_, conn := serveRLS(t, headgated.Config{Document: source(rules), Redis: "redis://127.0.0.1:1", Failure: redisstore.FailClosed})
		c := pb.NewRateLimitServiceClient(conn)
		r, err := c.ShouldRateLimit(t.Context(), &pb.RateLimitRequest{Domain: "d", Descriptors: of})
		if err != nil || r.GetOverallCode() != pb.RateLimitResponse_OVER_LIMIT || field(r, "Content-Type") != "application/problem+json" {
			t.Errorf("%s: %v, %v", name, r, err)
		}
		if _, err := c.ShouldRateLimit(t.Context(), &pb.RateLimitRequest{Domain: "d", Descriptors: ds{d("user=a"), hits(1, "ten=a")}}); status.Code(err) != codes.Unavailable {
			t.Errorf("nothing refuses, and there is no decision: %v", err)
		}
	}
}

// JSON has the multipliers of units, in requests and in answers.
func TestMultipliersInJSON(t *testing.T) {
	s := open(t, headgated.Config{Document: source(rules)})
	for _, test := range []struct {
		limit string
		code  int
		want  string
	}{
		{`, "limit": {"requestsPerUnit": 9, "unit": "MINUTE", "unitMultiplier": 30}`, 200, `{"requestsPerUnit":9,"unit":"MINUTE","unitMultiplier":30}`},
		{`, "limit": {"requests_per_unit": 9, "unit": "MINUTE", "unit_multiplier": "30"}`, 200, `{"requestsPerUnit":9,"unit":"MINUTE","unitMultiplier":30}`},
		{`, "limit": {"requestsPerUnit": 1, "unit": "MINUTE", "unitMultiplier": null}`, 200, `{"requestsPerUnit":1,"unit":"MINUTE"}`},
		{`, "limit": {"requestsPerUnit": 1, "unit": "MINUTE", "unitMultiplier": 0}`, 400, ""},
		{`, "limit": {"requestsPerUnit": 1, "unit": "MINUTE", "unitMultiplier": -1}`, 400, ""},
		{`, "limit": {"requestsPerUnit": 1, "unit": "MINUTE", "multiplier": 1}`, 400, ""},
		{`, "unitMultiplier": 3`, 400, ""},
		{`}], "descriptors": [{"entries": [{"key": "multiplier", "value": "` + "\xff" + `"}]`, 400, ""},
		{"", 200, `{"requestsPerUnit":5,"unit":"SECOND","unitMultiplier":5}`},
	} {
		w := httptest.NewRecorder()
		body := `{"domain": "d", "descriptors": [{"entries": [{"key": "bucket", "value": "a"}]` + test.limit + `}]}`
		s.HTTP().ServeHTTP(w, httptest.NewRequest("POST", "/json", strings.NewReader(body)))
		got := strings.ReplaceAll(w.Body.String(), " ", "")
		if w.Code != test.code || !strings.Contains(got, test.want) {
			t.Errorf("%s: %d %s", test.limit, w.Code, got)
		}
	}
}
