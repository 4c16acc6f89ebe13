package headgated

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	commonpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// Whatever a program sends gets an answer in JSON: an error that says why, or what it asked for, which has been
// understood as package json does.
func FuzzProgram(f *testing.F) {
	for _, body := range []string{
		"", "{", `{"charges": [{"limit": "api", "key": "anna", "units": 1, "plan": "gold"}]}`, `{"charges": [{"limit": "api", "key": "\ud83d\ude00"}, {"limit": "api", "key": "b", "units": 2}]}`,
		`{"charges": [{"limit": "api", "key": "a", "units": 9007199254740993}]}`, `{"charges": [{"limit": "api", "key": "a", "key": "b"}]}`, "{\"charges\": [{\"limit\": \"api\", \"key\": \"\xff\"}]}",
	} {
		f.Add([]byte(body))
	}
	s, err := New(Config{Document: func(context.Context) ([]byte, error) { return []byte(valid), nil }, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(s.Close)
	h := s.HTTP()
	f.Fuzz(func(t *testing.T, body []byte) {
		r := httptest.NewRequestWithContext(t.Context(), "POST", "/v1/charge", strings.NewReader(string(body)))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		var got struct {
			Detail  string
			Answers []struct{ Limiter string }
		}
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
			t.Fatalf("%v: %s", err, w.Body)
		}
		var asked struct{ Charges []struct{ Limit string } }
		switch w.Code {
		case 400, 404, 413:
			if got.Detail == "" {
				t.Errorf("%d without a detail", w.Code)
			}
		case 200, 429:
			if err := json.Unmarshal(body, &asked); err != nil || len(asked.Charges) != len(got.Answers) {
				t.Fatalf("%v: %s is about %d charges", err, w.Body, len(asked.Charges))
			}
			for i, c := range asked.Charges {
				if got.Answers[i].Limiter != c.Limit {
					t.Errorf("charge %d is of %q, not %q", i, got.Answers[i].Limiter, c.Limit)
				}
			}
		default:
			t.Errorf("%d %s", w.Code, w.Body)
		}
	})
}

// A path that http.ServeMux would route to a handler is charged by the route of the same pattern, with the same path
// values, in whatever spelling, and also behind other routes; none makes the server panic.
func FuzzPath(f *testing.F) {
	for _, path := range []string{
		"/v1/a/chat", "/v1//a/./chat", "/v1/a%2fb/chat", "/v1/a/x/%2e%2e/chat", "/v1/%61/chat?x", "/v1/a/chat/", "*", "/%zz", "//v1/a/chat", "/v1/a;b/chat",
		"/v1/%2e%2e/chat", "/v1/%2E/chat", "/v1/..%2Fhealthz/chat", "/v1/a%2F..%2F../chat", "/v1/x%2Fy%2F../chat", "/v1/..%2f..%2fhealthz%2F../chat",
	} {
		f.Add(path)
	}
	var routes []*route
	for _, text := range []string{"/healthz", "/v1/healthz/chat/{rest...}", "/v1/{tenant}/chat"} {
		p, err := parsePattern(text)
		if err != nil {
			f.Fatal(err)
		}
		routes = append(routes, &route{path: p})
	}
	chat := routes[len(routes)-1]
	mux := http.NewServeMux()
	mux.HandleFunc("/v1/{tenant}/chat", func(w http.ResponseWriter, r *http.Request) { w.Header()["Tenant"] = []string{r.PathValue("tenant")} })
	f.Fuzz(func(t *testing.T, path string) {
		u, err := url.ParseRequestURI(path)
		if err != nil {
			return
		}
		request := func() *http.Request {
			r := &http.Request{Method: "GET", Host: "a", URL: u, RequestURI: path, Header: http.Header{}}
			return r.WithContext(t.Context())
		}
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, request())
		var tenants []string
		for _, m := range meet(routes, request()) {
			if m.route == chat {
				tenants = append(tenants, m.request.PathValue("tenant"))
			}
		}
		if served := w.Header()["Tenant"]; served != nil && !slices.Contains(tenants, served[0]) {
			t.Errorf("the mux serves %q to %q, and %q are charged", path, served, tenants)
		}
		if slices.Contains(tenants, "") {
			t.Errorf("%q has no tenant", path)
		}
	})
}

// What parses is read again alike, and no text makes the parser panic or a fault without a text.
func FuzzDocument(f *testing.F) {
	f.Add([]byte(valid))
	f.Add([]byte(`{"limits": {"api": {"plans": {"free": "sliding-log 2/minute"}}}, "routes": [{"charge": [{"limit": "api", "key": "basic"}]}]}`))
	f.Add([]byte("rls: [{domain: d, charge: each, descriptors: [{key: a, value: b*, share_threshold: true, rate_limit: {unit: day, requests_per_unit: 1}}]}]"))
	f.Add([]byte("limits: {}\ntrusted: [10.0.0.0/33]\nroutes: [{path: /{a}/{a...}, charge: {}}]"))
	f.Fuzz(func(t *testing.T, text []byte) {
		d, err := read(text)
		if (d == nil) != (err != nil) || err != nil && err.Error() == "" {
			t.Fatalf("%v, %v", d, err)
		}
		if err != nil {
			return
		}
		r := httptest.NewRequestWithContext(t.Context(), "POST", "http://api.example.com/v1/acme/chat", nil)
		for _, m := range meet(d.routes, r) {
			if !slices.Contains(d.routes, m.route) {
				t.Error("a route of another document")
			}
		}
	})
}

// What the codec takes beyond protobuf is requests with values that are not UTF-8, and nothing else changes.
func FuzzCodec(f *testing.F) {
	for _, q := range []*pb.RateLimitRequest{
		{Domain: "d", Descriptors: []*commonpb.RateLimitDescriptor{{Entries: []*commonpb.RateLimitDescriptor_Entry{{Key: "user", Value: "anna"}, {Key: "a"}}}}, HitsAddend: 7},
		{Domain: "d", Descriptors: []*commonpb.RateLimitDescriptor{{Limit: &commonpb.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 1}}}},
	} {
		text, err := proto.Marshal(q)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
		f.Add([]byte(strings.ReplaceAll(string(text), "anna", "a\xffna")))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var plain pb.RateLimitRequest
		var m message
		if err := newCodec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(text)}, &m); err != nil {
			t.Fatal(err)
		}
		lenient, err := &m.request, m.fault
		switch before := proto.Unmarshal(text, &plain); {
		case before == nil && (err != nil || !proto.Equal(&plain, lenient)):
			t.Errorf("%v: %v, not %v", err, lenient, &plain)
		case before != nil && err == nil && !strings.Contains(lenient.String(), `\x00`) && !strings.Contains(before.Error(), "UTF-8"):
			t.Errorf("%v: taken as %v", before, lenient)
		}
		if _, err := proto.Marshal(lenient); err != nil {
			t.Error(err)
		}
	})
}
