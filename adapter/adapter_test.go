package adapter_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/headgate/headgate/adapter"
	"github.com/headgate/headgate/keyfuncs"
)

// A visit is the context of a framework that is made up.
type visit struct {
	r     *http.Request
	user  any
	route string
}

var framework = adapter.Framework[*visit]{Name: "visits", Request: func(v *visit) *http.Request { return v.r }}

type hidden string

func (hidden) String() string { return "hidden" }

func TestKeys(t *testing.T) {
	request := framework.Key(keyfuncs.Header("X-Own"))
	route := framework.Text("route", func(v *visit) string { return v.route })
	user := framework.Value(`value "user"`, func(v *visit) any { return v.user })
	for _, test := range []struct {
		name string
		key  adapter.Key[*visit]
		user any
		want string
		err  error
	}{
		{"of the request", request, nil, "anna", nil},
		{"not of the request", framework.Key(keyfuncs.Header("X-None")), nil, "", keyfuncs.ErrAbsent},
		{"text", route, nil, "/items", nil},
		{"no text", framework.Text("nothing", func(*visit) string { return "" }), nil, "", keyfuncs.ErrAbsent},
		{"a string", user, "ben", "ben", nil},
		{"a type of strings", user, hidden("carl"), "carl", nil},
		{"a number", user, int8(-4), "-4", nil},
		{"nil", user, nil, "", keyfuncs.ErrAbsent},
		{"an empty string", user, "", "", keyfuncs.ErrAbsent},
		{"an empty type of strings", user, hidden(""), "", keyfuncs.ErrAbsent},
		{"a struct", user, struct{ secret int }{4711}, "", keyfuncs.ErrProgram},
		{"all", framework.All(route, request), nil, "6:/items,4:anna,", nil},
		{"all, one absent", framework.All(route, user), nil, "", keyfuncs.ErrAbsent},
		{"first", framework.First(user, request), nil, "1:anna", nil},
		{"first of the first", framework.First(user, request), "ben", "0:ben", nil},
		{"an error ends it", framework.First(user, request), 1.5, "", keyfuncs.ErrProgram},
	} {
		t.Run(test.name, func(t *testing.T) {
			v := &visit{httptest.NewRequest("GET", "/", nil), test.user, "/items"}
			v.r.Header.Set("X-Own", "anna")
			got, err := test.key(v)
			if got != test.want || !errors.Is(err, test.err) {
				t.Errorf("%q, %v", got, err)
			}
			if err != nil && (strings.Contains(err.Error(), "4711") || strings.Count(err.Error(), "value \"user\"") > 1) {
				t.Errorf("the error is %v", err)
			}
		})
	}
}

func TestContext(t *testing.T) {
	v := &visit{r: httptest.NewRequest("GET", "/", nil)}
	if got := framework.Context(v.r); got != nil {
		t.Errorf("%v without With", got)
	}
	r := framework.With(v)
	if got := framework.Context(r); got != v {
		t.Errorf("%v, want %v", got, v)
	}
	if got := (adapter.Framework[*http.Request]{}).Context(r); got != nil {
		t.Errorf("another framework's is %v", got)
	}
}

func TestBy(t *testing.T) {
	one := framework.Key(keyfuncs.Everyone())
	if adapter.By[*visit](nil, nil) != nil || adapter.Count[*visit](nil) != -1 {
		t.Error("no keys are some")
	}
	keys := framework.Keys("LimitBy", one, framework.Text("route", func(v *visit) string { return v.route }))
	v := &visit{httptest.NewRequest("GET", "/", nil), nil, "/items"}
	if got, err := adapter.By(keys, v)(1); got != "/items" || err != nil || adapter.Count(keys) != 2 {
		t.Errorf("%q, %v, %d keys", got, err, adapter.Count(keys))
	}
}

func TestPanics(t *testing.T) {
	for name, f := range map[string]func(){
		"a nil function": func() { framework.Key(nil) },
		"all of nothing": func() { framework.All() },
		"first of nil":   func() { framework.First(nil) },
		"no keys":        func() { framework.Keys("LimitBy") },
		"a nil key":      func() { framework.Keys("LimitBy", framework.Key(keyfuncs.Everyone()), nil) },
	} {
		func() {
			defer func() {
				if text, _ := recover().(string); !strings.HasPrefix(text, "headgate: visits: ") {
					t.Errorf("%s: panic %q", name, text)
				}
			}()
			f()
		}()
	}
}
