package envoy_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	commonpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"

	"github.com/headgate/headgate/headgated"
)

// Numbers and texts are read alike, however they are written: both as YAML 1.1 has them. What the reference takes for a
// fraction is a fault there.
func TestScalars(t *testing.T) {
	for _, number := range []string{"010", "0o10", "0x10", "0b11", "1_000", "+5", "5.5", `"5"`, "-1", "''", "null", ".inf", "1:30"} {
		compareScalar(t, "key: k, rate_limit: {unit: hour, requests_per_unit: "+number+"}", "v")
	}
	for _, text := range []string{"010", "0x10", "1_000", "yes", "on", "~", "null", "2020-01-01", "1:30", "'yes'", "TRUE", "=", "Null"} {
		for _, value := range []string{strings.Trim(text, "'"), "8", "16", "1000", "true", ""} {
			compareScalar(t, "key: k, value: "+text+", rate_limit: {unit: hour, requests_per_unit: 7}", value)
		}
	}
}

// compareScalar compares what a value is limited to.
func compareScalar(t *testing.T, descriptor, value string) {
	t.Helper()
	text := "domain: d\ndescriptors: [{" + descriptor + "}]"
	theirs := "a fault"
	loaded, err := load(false, text)
	if err == nil {
		theirs = "none"
		of := &commonpb.RateLimitDescriptor{Entries: []*commonpb.RateLimitDescriptor_Entry{{Key: "k", Value: value}}}
		limit := loaded.GetLimit(t.Context(), "d", of)
		if limit != nil {
			theirs = fmt.Sprint(limit.Limit.GetRequestsPerUnit())
		}
	}
	document := func(context.Context) ([]byte, error) { return []byte(text), nil }
	ours := "a fault"
	explained, matched, err := headgated.ExplainDescriptor(headgated.Config{Document: document}, "d", []string{"k=" + value})
	switch {
	case err == nil && !matched:
		ours = "none"
	case err == nil && strings.HasSuffix(explained, ": blocked\n"):
		ours = "0"
	case err == nil:
		_, number, _ := strings.Cut(explained, "fixed-window ")
		ours, _, _ = strings.Cut(number, "/")
	}
	if ours != theirs {
		t.Errorf("%s, %q: %s, and the reference has %s", descriptor, value, ours, theirs)
	}
}
