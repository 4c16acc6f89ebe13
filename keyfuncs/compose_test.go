package keyfuncs_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/headgate/headgate/keyfuncs"
)

var (
	errBroken = errors.New("broken")

	// errMalformed stands, in tests, for any error of a value that cannot be used.
	errMalformed = errors.New("malformed")
)

// isError is errors.Is; of errMalformed it asks for what guards and First must not take for another.
func isError(err, want error) bool {
	if want != errMalformed { //nolint:errorlint // the very same
		return errors.Is(err, want)
	}
	return err != nil && !errors.Is(err, keyfuncs.ErrAbsent) && !errors.Is(err, keyfuncs.ErrProgram) && strings.Contains(err.Error(), "malformed")
}

// first is First with the tags a, b and so on.
func first(fs ...keyfuncs.Func) keyfuncs.Func {
	var tagged []keyfuncs.Tagged
	for i, f := range fs {
		tagged = append(tagged, keyfuncs.Tag(string(rune('a'+i)), f))
	}
	return keyfuncs.First(tagged...)
}

func constant(key string) keyfuncs.Func {
	return func(*http.Request) (string, error) { return key, nil }
}

func failing(err error) keyfuncs.Func {
	return func(*http.Request) (string, error) { return "ignored", err }
}

// never is a Func that must not be asked.
func never(t *testing.T) keyfuncs.Func {
	t.Helper()
	return func(*http.Request) (string, error) {
		t.Error("asked after the answer was known")
		return "", errBroken
	}
}

func keyOf(t *testing.T, f keyfuncs.Func) string {
	t.Helper()
	key, err := f(new(http.Request))
	if err != nil || key == "" {
		t.Fatalf("got %q, %v", key, err)
	}
	return key
}

func wantError(t *testing.T, f keyfuncs.Func, want error) {
	t.Helper()
	if key, err := f(new(http.Request)); key != "" || !isError(err, want) {
		t.Errorf("got %q, %v; want %v", key, err, want)
	}
}

func TestAll(t *testing.T) {
	absent := failing(keyfuncs.ErrAbsent)
	for _, c := range []struct {
		f    keyfuncs.Func
		want string
	}{
		{keyfuncs.All(constant("a")), "1:a,"},
		{keyfuncs.All(constant("GET /"), constant("203.0.113.7")), "5:GET /,11:203.0.113.7,"},
		{keyfuncs.All(keyfuncs.All(constant("a")), constant("b")), "4:1:a,,1:b,"},
		{keyfuncs.All(constant(strings.Repeat("k", 1000))), "1000:" + strings.Repeat("k", 1000) + ","},
	} {
		if got := keyOf(t, c.f); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
	wantError(t, keyfuncs.All(constant("a"), absent, never(t)), keyfuncs.ErrAbsent)
	wantError(t, keyfuncs.All(constant("a"), failing(errBroken), never(t)), errBroken)
}

// The tricks by which combinations of keys are made to collide elsewhere.
func TestAllUnambiguous(t *testing.T) {
	parts := []string{"a", "b", "ab", "a:b", ":", ",", "1:a", "1:a,", "1:a,1:b", "\x00", "\xff", "1", "11", "a,1:b"}
	seen := map[string][2]string{}
	for _, a := range parts {
		for _, b := range parts {
			key := keyOf(t, keyfuncs.All(constant(a), constant(b)))
			if other, ok := seen[key]; ok {
				t.Errorf("%q and %q have the key %q", [2]string{a, b}, other, key)
			}
			seen[key] = [2]string{a, b}
		}
	}
}

func TestFirst(t *testing.T) {
	absent := failing(keyfuncs.ErrAbsent)
	for _, c := range []struct {
		f    keyfuncs.Func
		want string
	}{
		{first(constant("a")), "a:a"},
		{first(constant("a"), never(t)), "a:a"},
		{first(absent, constant("b"), never(t)), "b:b"},
		{first(absent, first(absent, constant("b"))), "b:b:b"},
		{first(keyfuncs.All(constant("a"), absent), constant("b")), "b:b"},
	} {
		if got := keyOf(t, c.f); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
	wantError(t, first(absent, failing(errBroken), never(t)), errBroken)
	wantError(t, first(failing(errMalformed), never(t)), errMalformed)
	wantError(t, first(absent, absent), keyfuncs.ErrAbsent)
}

// A client that may choose its name cannot drain the limit of another's address.
func TestFirstKeepsMembersApart(t *testing.T) {
	f := first(keyfuncs.Header("X-Session"), keyfuncs.RemoteAddr())
	victim, err := f(request("203.0.113.7:80", ""))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"203.0.113.7", victim} {
		got, err := f(request("198.51.100.1:80", "X-Session", name))
		if err != nil || got == victim {
			t.Errorf("the session %q is charged as the address: %q, %v", name, got, err)
		}
	}
}

// A Func that forgets its contract must not make strangers share a limit, nor let
// First choose for it.
func TestEmptyKey(t *testing.T) {
	for _, f := range []keyfuncs.Func{
		keyfuncs.All(constant("a"), constant(""), never(t)),
		first(constant(""), never(t)),
	} {
		key, err := f(new(http.Request))
		if key != "" || err == nil || errors.Is(err, keyfuncs.ErrAbsent) {
			t.Errorf("got %q, %v", key, err)
		}
	}
}

func TestTags(t *testing.T) {
	f := keyfuncs.First(keyfuncs.Tag("user", failing(keyfuncs.ErrAbsent)), keyfuncs.Tag("ip", constant("192.0.2.1")))
	if got := keyOf(t, f); got != "ip:192.0.2.1" {
		t.Errorf("got %q", got)
	}
	for name, wrong := range map[string]func(){
		"Tag, empty":            func() { keyfuncs.Tag("", constant("a")) },
		"Tag, a colon":          func() { keyfuncs.Tag("a:b", constant("a")) },
		"Tag, a space":          func() { keyfuncs.Tag("a b", constant("a")) },
		"Tag, nil":              func() { keyfuncs.Tag("a", nil) },
		"First, none":           func() { keyfuncs.First() },
		"First, the zero":       func() { keyfuncs.First(keyfuncs.Tagged{}) },
		"First, twice the same": func() { keyfuncs.First(keyfuncs.Tag("a", constant("a")), keyfuncs.Tag("a", constant("b"))) },
	} {
		function, _, _ := strings.Cut(name, ",")
		if text := panicOf(wrong); !strings.HasPrefix(text, "headgate: keyfuncs: "+function+": ") {
			t.Errorf("%s: %q", name, text)
		}
	}
}

func TestMembersAreCopied(t *testing.T) {
	fns, tagged := []keyfuncs.Func{constant("a")}, []keyfuncs.Tagged{keyfuncs.Tag("a", constant("a"))}
	all, first := keyfuncs.All(fns...), keyfuncs.First(tagged...)
	fns[0], tagged[0] = nil, keyfuncs.Tagged{}
	if got := keyOf(t, all) + keyOf(t, first); got != "1:a,a:a" {
		t.Errorf("got %q", got)
	}
}
