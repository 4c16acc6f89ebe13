package adapter_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/headgate/headgate/adapter"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// A visit is the context of a framework that is made up.
type visit struct {
	r      *http.Request
	route  string
	stored map[string]any
}

var framework = adapter.Framework[*visit]{
	Name:    "visits",
	Request: func(v *visit) *http.Request { return v.r },
	Get:     func(v *visit, name string) any { return v.stored[name] },
	Set:     func(v *visit, name string, value any) { v.stored[name] = value },
}

func newVisit(user any) *visit {
	v := &visit{r: httptest.NewRequest("GET", "/", nil), route: "/items", stored: map[string]any{"user": user}}
	v.r.Header.Set("X-Own", "anna")
	return v
}

type hidden string

func (hidden) String() string { return "hidden" }

func TestKeys(t *testing.T) {
	own := keyfuncs.Header("X-Own")
	route := framework.Text("route", func(v *visit) string { return v.route })
	user := framework.Value("user")
	for _, test := range []struct {
		name string
		key  keyfuncs.Func
		user any
		want string
		err  error
	}{
		{"any", framework.Key(func(v *visit) (string, error) { return v.route + "!", nil }), nil, "/items!", nil},
		{"text", route, nil, "/items", nil},
		{"no text", framework.Text("nothing", func(*visit) string { return "" }), nil, "", keyfuncs.ErrAbsent},
		{"a string", user, "ben", "ben", nil},
		{"a type of strings", user, hidden("carl"), "carl", nil},
		{"a number", user, int8(-4), "-4", nil},
		{"nil", user, nil, "", keyfuncs.ErrAbsent},
		{"an empty string", user, "", "", keyfuncs.ErrAbsent},
		{"an empty type of strings", user, hidden(""), "", keyfuncs.ErrAbsent},
		{"a struct", user, struct{ secret int }{4711}, "", keyfuncs.ErrProgram},
		{"all", keyfuncs.All(route, own), nil, "6:/items,4:anna,", nil},
		{"all, one absent", keyfuncs.All(route, user), nil, "", keyfuncs.ErrAbsent},
		{"first", keyfuncs.First(user, own), nil, "1:anna", nil},
		{"first of the first", keyfuncs.First(user, own), "ben", "0:ben", nil},
		{"an error ends it", keyfuncs.First(user, own), 1.5, "", keyfuncs.ErrProgram},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := test.key(framework.With(newVisit(test.user)))
			if got != test.want || !errors.Is(err, test.err) {
				t.Errorf("%q, %v", got, err)
			}
			if err != nil && (strings.Contains(err.Error(), "4711") || strings.Count(err.Error(), "context value \"user\"") > 1) {
				t.Errorf("the error is %v", err)
			}
		})
	}
}

// The framework's context is in that of the request from the beginning of a visit to its end.
func TestVisit(t *testing.T) {
	type name struct{}
	v := newVisit("anna")
	v.r = v.r.WithContext(context.WithValue(v.r.Context(), name{}, "outer"))
	other := adapter.Framework[*http.Request]{}
	for what, enter := range map[string]func() (*http.Request, func()){
		"With":  func() (*http.Request, func()) { return framework.With(v), nil },
		"Enter": func() (*http.Request, func()) { visit := framework.Enter(v, true); return visit.Request, visit.End },
	} {
		r, end := enter()
		if got := framework.Context(r); got != v {
			t.Errorf("%s: %v, want %v", what, got, v)
		}
		if got := r.Context().Value(name{}); got != "outer" {
			t.Errorf("%s: the value of the request's own context is %v", what, got)
		}
		if other.Context(r) != nil || framework.Context(v.r) != nil {
			t.Errorf("%s: it is in other requests, or for other frameworks", what)
		}
		if end != nil {
			if end(); framework.Context(r) != nil {
				t.Errorf("%s: it is there after the end", what)
			}
		}
	}
}

// What nobody wants costs nothing.
func TestVisitOfNoKeys(t *testing.T) {
	unused := adapter.Framework[*visit]{Request: func(v *visit) *http.Request { return v.r }}
	v := newVisit(nil)
	in := unused.Enter(v, false)
	if in.End(); in.Request != v.r {
		t.Error("a request was made for nothing")
	}
	if in := unused.Enter(v, true); in.Request == v.r {
		t.Error("functions find nothing")
	}
	key := unused.Key(func(v *visit) (string, error) { return v.route, nil })
	if got, err := key(unused.Enter(v, true).Request); got != "/items" || err != nil {
		t.Errorf("a key: %q, %v", got, err)
	}
	if _, err := key(v.r); !errors.Is(err, keyfuncs.ErrProgram) {
		t.Errorf("elsewhere: %v", err)
	}
}

// Verdicts are kept where that is asked for.
func TestVerdicts(t *testing.T) {
	own := framework.Get
	one := adapter.Framework[*visit]{Name: "one", Get: own, Set: framework.Set}
	v := newVisit(nil)
	verdict := nethttp.Verdict{Err: errors.New("any")}
	one.Keep(v, verdict)
	if _, ok := one.Verdict(v); ok {
		t.Error("it was kept for nobody")
	}
	keep := one.KeepVerdict()
	if one.Keep(v, verdict); len(v.stored) != 1 {
		t.Error("it was kept for a request that nobody asked about")
	}
	if keep(v); len(v.stored) != 2 {
		t.Error("there is no place for it")
	}
	if _, ok := one.Verdict(v); ok {
		t.Error("one was kept before there was any")
	}
	one.Keep(v, verdict)
	if got, ok := one.Verdict(v); !ok || !errors.Is(got.Err, verdict.Err) {
		t.Errorf("%v, %v", got, ok)
	}
}

func TestKeyOfNothing(t *testing.T) {
	defer func() {
		if text, _ := recover().(string); !strings.HasPrefix(text, "headgate: visits: ") {
			t.Errorf("panic %q", text)
		}
	}()
	framework.Key(nil)
}
