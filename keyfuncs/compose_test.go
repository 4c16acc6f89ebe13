package keyfuncs_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/headgate/headgate/keyfuncs"
)

var errBroken = errors.New("broken")

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
	if key, err := f(new(http.Request)); key != "" || !errors.Is(err, want) {
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
		{keyfuncs.First(constant("a")), "0:a"},
		{keyfuncs.First(constant("a"), never(t)), "0:a"},
		{keyfuncs.First(absent, constant("b"), never(t)), "1:b"},
		{keyfuncs.First(absent, keyfuncs.First(absent, constant("b"))), "1:1:b"},
		{keyfuncs.First(keyfuncs.All(constant("a"), absent), constant("b")), "1:b"},
	} {
		if got := keyOf(t, c.f); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
	wantError(t, keyfuncs.First(absent, failing(errBroken), never(t)), errBroken)
	wantError(t, keyfuncs.First(failing(keyfuncs.ErrMalformed), never(t)), keyfuncs.ErrMalformed)
	wantError(t, keyfuncs.First(absent, absent), keyfuncs.ErrAbsent)
}

// A client that may choose its name cannot drain the limit of another's address.
func TestFirstKeepsMembersApart(t *testing.T) {
	f := keyfuncs.First(keyfuncs.Header("X-Session"), keyfuncs.RemoteAddr())
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
		keyfuncs.First(constant(""), never(t)),
	} {
		key, err := f(new(http.Request))
		if key != "" || err == nil || errors.Is(err, keyfuncs.ErrAbsent) {
			t.Errorf("got %q, %v", key, err)
		}
	}
}

func TestMembersAreCopied(t *testing.T) {
	for _, compose := range []func(...keyfuncs.Func) keyfuncs.Func{keyfuncs.All, keyfuncs.First} {
		fns := []keyfuncs.Func{constant("a")}
		f := compose(fns...)
		want := keyOf(t, f)
		fns[0] = nil
		if got := keyOf(t, f); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
