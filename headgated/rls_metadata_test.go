package headgated_test

import (
	"encoding/json"
	"strings"
	"testing"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/headgate/headgate/headgated"
)

const withMetadata = `rls:
- domain: d
  descriptors:
  - {key: fast, quota_mode: true, metadata: {server: large, both: {a: 1, same: fast}, list: [x, null, true]}, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: slow, quota_mode: true, metadata: {server: small, both: {b: 2.5, same: slow}, more: {empty: {}}}, rate_limit: {unit: year, requests_per_unit: 2}}
  - {key: more, metadata: {more: {empty: {c: 3}}}, rate_limit: {unit: year, requests_per_unit: 100}}
  - {key: free, metadata: {server: free}, rate_limit: {unlimited: true}}
  - {key: outer, metadata: {server: outer}, descriptors: [{key: inner, rate_limit: {unit: year, requests_per_unit: 1}}]}
`

// An answer has the metadata of the limits that are passed, the first of each name, as the reference has it; but only
// if that is asked for.
func TestDynamicMetadata(t *testing.T) {
	for _, on := range []bool{true, false} {
		_, conn := serveRLS(t, headgated.Config{Document: source(withMetadata), ResponseMetadata: on})
		c := pb.NewRateLimitServiceClient(conn)
		for i, test := range []struct {
			domain string
			addend uint32
			of     ds
			want   string
		}{
			{"d", 0, ds{d("fast=a"), d("slow=a")}, `{"domain":"d","descriptors":[{"entries":["fast=a"]},{"entries":["slow=a"]}],
				"metadata":{"server":"large","both":{"a":1,"b":2.5,"same":"fast"},"list":["x",null,true],"more":{"empty":{}}}}`},
			{"d", 1, ds{d("fast=a"), d("slow=a"), d("more=a")}, `{"domain":"d","hitsAddend":1,"descriptors":[{"entries":["fast=a"]},{"entries":["slow=a"]},{"entries":["more=a"]}],
				"metadata":{"server":"small","both":{"b":2.5,"same":"slow"},"more":{"empty":{"c":3}}}}`},
			{"d", 0, ds{d("more=a")}, `{"domain":"d","descriptors":[{"entries":["more=a"]}],"metadata":{"more":{"empty":{"c":3}}}}`}, // nothing was added to it
			{"d", 0, ds{d("fast=a"), d("slow=a")}, `{"domain":"d","descriptors":[{"entries":["fast=a"]},{"entries":["slow=a"]}]}`},
			{"d", 0, ds{d("free=a"), hits(0, "x=", "y=b"), d("outer=a", "inner=b")}, `{"domain":"d","descriptors":[{"entries":["free=a"]},{"entries":["x=","y=b"],"hitsAddend":0},{"entries":["outer=a","inner=b"]}]}`},
			{"d", 0, ds{limit(5, 4, 1, "more=a")}, `{"domain":"d","descriptors":[{"entries":["more=a"]}]}`}, // its own limit has none
			{"none", 0, ds{d("more=a")}, `{"domain":"none","descriptors":[{"entries":["more=a"]}]}`},
		} {
			r, err := c.ShouldRateLimit(t.Context(), &pb.RateLimitRequest{Domain: test.domain, HitsAddend: test.addend, Descriptors: test.of})
			must(t, err)
			if !on {
				if r.GetDynamicMetadata() != nil {
					t.Errorf("%d: %v", i, r)
				}
				continue
			}
			text, err := protojson.Marshal(r.GetDynamicMetadata())
			must(t, err)
			if got, want := sorted(t, string(text)), sorted(t, test.want); got != want {
				t.Errorf("%d: %s, not %s", i, got, want)
			}
		}
	}
}

// sorted returns a text in JSON with its names in order.
func sorted(t *testing.T, text string) string {
	t.Helper()
	var v any
	must(t, json.Unmarshal([]byte(text), &v))
	encoded, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(encoded)
}

// What cannot be told in JSON is a fault.
func TestMetadataFaults(t *testing.T) {
	for metadata, want := range map[string]string{
		"text":             "it is a string, not a map",
		"{a: 1, a: 2}":     "there twice",
		"{a: .inf}":        "no number of JSON",
		"{a: 0x1}":         "no number of JSON",
		"{a: {b: [.nan]}}": "no number of JSON",
		"{a: yes}":         "quote it",
	} {
		_, err := headgated.New(headgated.Config{Document: source("rls: [{domain: d, descriptors: [{key: k, metadata: " + metadata + "}]}]")})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", metadata, err)
		}
	}
}
