package keyfuncs_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/headgate/headgate/keyfuncs"
)

func TestHeader(t *testing.T) {
	const secret = "s3cr3t"
	for _, c := range []struct {
		name  string
		lines []string
		want  string
		err   error
	}{
		{"one", []string{secret}, secret, nil},
		{"spaces", []string{" \t" + secret + "\t "}, secret, nil},
		{"inner spaces", []string{"a \tb"}, "a \tb", nil},
		{"any bytes", []string{"\x00\xff,"}, "\x00\xff,", nil},
		{"4 KiB", []string{strings.Repeat("k", 4096)}, strings.Repeat("k", 4096), nil},
		{"missing", nil, "", keyfuncs.ErrAbsent},
		{"empty", []string{""}, "", keyfuncs.ErrAbsent},
		{"spaces only", []string{" \t "}, "", keyfuncs.ErrAbsent},
		{"repeated", []string{secret, secret}, "", errMalformed},
		{"repeated empty", []string{"", ""}, "", errMalformed},
		{"more than 4 KiB", []string{secret + strings.Repeat("k", 4097-len(secret))}, "", errMalformed},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := keyfuncs.Header("x-api-key")(request("", "X-Api-Key", c.lines...))
			if got != c.want || !isError(err, c.err) {
				t.Errorf("got %q, %v; want %q, %v", got, err, c.want, c.err)
			}
			if err != nil && (strings.Contains(err.Error(), secret) || !strings.Contains(err.Error(), "header X-Api-Key")) {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestRoute(t *testing.T) {
	var inside, outside string
	var errOutside error
	mux := http.NewServeMux()
	mux.HandleFunc("GET /items/{id}", func(_ http.ResponseWriter, r *http.Request) {
		inside, _ = keyfuncs.Route()(r)
	})
	around := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		outside, errOutside = keyfuncs.Route()(r)
		mux.ServeHTTP(w, r)
	})
	around.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/items/7", nil))
	if inside != "GET /items/{id}" {
		t.Errorf("inside the mux: %q", inside)
	}
	if outside != "" || !errors.Is(errOutside, keyfuncs.ErrAbsent) {
		t.Errorf("around the mux: %q, %v", outside, errOutside)
	}
}

type (
	userKey struct{}
	userID  string
	token   string
	level   int
	ghost   struct{ name string }
)

func (token) String() string    { return "hidden" }
func (level) String() string    { return "some level" }
func (g *ghost) String() string { return g.name }

func TestContext(t *testing.T) {
	for _, c := range []struct {
		name  string
		value any
		want  string
		err   error
	}{
		{"string", "anna", "anna", nil},
		{"string type", userID("anna"), "anna", nil},
		{"string type that hides itself", token("s3cr3t"), "s3cr3t", nil},
		{"int", -42, "-42", nil},
		{"int type that names itself", level(3), "3", nil},
		{"uint64", uint64(1 << 63), "9223372036854775808", nil},
		{"zero", 0, "0", nil},
		{"Stringer", netip.MustParseAddr("203.0.113.7"), "203.0.113.7", nil},
		{"pointer", &ghost{"casper"}, "casper", nil},
		{"nothing", nil, "", keyfuncs.ErrAbsent},
		{"empty", "", "", keyfuncs.ErrAbsent},
		{"empty string type", userID(""), "", keyfuncs.ErrAbsent},
		{"empty Stringer", &ghost{}, "", keyfuncs.ErrAbsent},
		{"nil pointer", (*ghost)(nil), "", keyfuncs.ErrAbsent},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := new(http.Request).WithContext(context.WithValue(t.Context(), userKey{}, c.value))
			got, err := keyfuncs.Context(userKey{})(r)
			if got != c.want || !isError(err, c.err) {
				t.Errorf("got %q, %v; want %q, %v", got, err, c.want, c.err)
			}
		})
	}
}

func TestContextMissing(t *testing.T) {
	key, err := keyfuncs.Context(userKey{})(new(http.Request))
	if key != "" || !errors.Is(err, keyfuncs.ErrAbsent) {
		t.Errorf("got %q, %v", key, err)
	}
}

// A value without text is neither absent, or First would go on, nor the client's fault.
func TestContextOfOtherType(t *testing.T) {
	for _, value := range []any{[]byte("s3cr3t"), struct{ s string }{"s3cr3t"}, 1.5, true, &struct{}{}} {
		r := new(http.Request).WithContext(context.WithValue(t.Context(), userKey{}, value))
		key, err := keyfuncs.Context(userKey{})(r)
		if key != "" || err == nil || errors.Is(err, keyfuncs.ErrAbsent) || !errors.Is(err, keyfuncs.ErrProgram) {
			t.Errorf("%T: got %q, %v", value, key, err)
		}
		if err != nil && strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("the error holds the value: %v", err)
		}
	}
}

func TestEveryone(t *testing.T) {
	wantKey(t, keyfuncs.Everyone(), new(http.Request), "everyone")
}

func TestPanics(t *testing.T) {
	for name, wrong := range map[string]func(){
		"Header, empty":           func() { keyfuncs.Header("") },
		"Header, not a name":      func() { keyfuncs.Header("X-Key: ") },
		"Context, nil":            func() { keyfuncs.Context(nil) },
		"Context, not comparable": func() { keyfuncs.Context([]string{}) },
		"All, none":               func() { keyfuncs.All() },
		"All, nil":                func() { keyfuncs.All(keyfuncs.Route(), nil) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if text, _ := recover().(string); !strings.HasPrefix(text, "headgate: keyfuncs: ") {
					t.Errorf("recovered %q", text)
				}
			}()
			wrong()
		})
	}
}
