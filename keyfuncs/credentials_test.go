package keyfuncs_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/headgate/headgate/keyfuncs"
)

const (
	secret = "s3cr3t"

	// What this prints:
	//
	//	printf s3cr3t | openssl dgst -sha256 -binary | head -c 16 | base64 | tr +/ -_ | tr -d =
	hashOfSecret = "TnOMpVY8Bs_QAYKZkz1Y2w"
)

// hashLength is that of 128 bits in base64.
const hashLength = 22

// asked is one request, and what a Func says about it.
type asked struct {
	name  string
	lines []string
	want  string
	err   error
}

// check calls f and checks that no error contains what the client wrote.
func (c asked) check(t *testing.T, f keyfuncs.Func, header, thing string) {
	t.Helper()
	got, err := f(request("", header, c.lines...))
	if got != c.want || !isError(err, c.err) {
		t.Errorf("got %q, %v; want %q, %v", got, err, c.want, c.err)
	}
	if err != nil && (strings.Contains(err.Error(), secret) || !strings.Contains(err.Error(), thing)) {
		t.Errorf("%v", err)
	}
}

func TestHashed(t *testing.T) {
	key := keyfuncs.Hashed(keyfuncs.Header("X-Api-Key"))
	for _, c := range []asked{
		{"a secret", []string{secret}, hashOfSecret, nil},
		{"absent", nil, "", keyfuncs.ErrAbsent},
		{"malformed", []string{secret, secret}, "", errMalformed},
	} {
		t.Run(c.name, func(t *testing.T) { c.check(t, key, "X-Api-Key", "header X-Api-Key") })
	}
	for _, f := range []keyfuncs.Func{constant(""), failing(errBroken)} {
		if key, err := keyfuncs.Hashed(f)(new(http.Request)); key != "" || err == nil {
			t.Errorf("got %q, %v", key, err)
		}
	}
}

func TestCookie(t *testing.T) {
	long := strings.Repeat("k", 4096)
	for _, c := range []asked{
		{"one", []string{"id=" + secret}, hashOfSecret, nil},
		{"quoted", []string{`id="` + secret + `"`}, hashOfSecret, nil},
		{"among others", []string{"a=1; id=" + secret + "; ID=2", "b=3"}, hashOfSecret, nil},
		{"4 KiB", []string{"id=" + long}, keyOf(t, keyfuncs.Hashed(constant(long))), nil},
		{"no header", nil, "", keyfuncs.ErrAbsent},
		{"another name", []string{"idx=" + secret + "; xid=" + secret + "; ID=" + secret}, "", keyfuncs.ErrAbsent},
		{"empty", []string{"id="}, "", keyfuncs.ErrAbsent},
		{"empty in quotes", []string{`id=""`}, "", keyfuncs.ErrAbsent},
		{"no value", []string{"id"}, "", keyfuncs.ErrAbsent},
		{"no bytes of a cookie", []string{"id=" + secret + "\x00"}, "", keyfuncs.ErrAbsent},
		{"repeated", []string{"id=" + secret + "; id=" + secret}, "", errMalformed},
		{"on two lines", []string{"id=" + secret, "id=2"}, "", errMalformed},
		{"one of them empty", []string{"id=" + secret + "; id="}, "", errMalformed},
		{"more than 4 KiB", []string{"id=k" + long}, "", errMalformed},
	} {
		t.Run(c.name, func(t *testing.T) { c.check(t, keyfuncs.Cookie("id"), "Cookie", "cookie id") })
	}
}

func TestBearer(t *testing.T) {
	long := strings.Repeat("k", 16<<10)
	for _, c := range []asked{
		{"a token", []string{"Bearer " + secret}, hashOfSecret, nil},
		{"scheme in other letters", []string{"bEARER " + secret}, hashOfSecret, nil},
		{"spaces", []string{" \tBearer \t " + secret + " "}, hashOfSecret, nil},
		{"a tab", []string{"Bearer\t" + secret}, hashOfSecret, nil},
		{"16 KiB", []string{"Bearer " + long}, keyOf(t, keyfuncs.Hashed(constant(long))), nil},
		{"all that is visible", []string{"Bearer !~"}, keyOf(t, keyfuncs.Hashed(constant("!~"))), nil},
		{"no header", nil, "", keyfuncs.ErrAbsent},
		{"empty", []string{""}, "", keyfuncs.ErrAbsent},
		{"no token", []string{"Bearer"}, "", keyfuncs.ErrAbsent},
		{"no token but a space", []string{"Bearer "}, "", keyfuncs.ErrAbsent},
		{"no scheme", []string{secret}, "", keyfuncs.ErrAbsent},
		{"no space", []string{"Bearer" + secret}, "", keyfuncs.ErrAbsent},
		{"another scheme", []string{"Basic " + secret}, "", keyfuncs.ErrAbsent},
		{"longer scheme", []string{"Bearers " + secret}, "", keyfuncs.ErrAbsent},
		{"two lines", []string{"Bearer " + secret, "Bearer " + secret}, "", errMalformed},
		{"two schemes", []string{"Basic YTpi", "Bearer " + secret}, "", errMalformed},
		{"two tokens", []string{"Bearer " + secret + " " + secret}, "", errMalformed},
		{"joined lines", []string{"Bearer " + secret + ", Bearer x"}, "", errMalformed},
		{"a control character", []string{"Bearer " + secret + "\x7f"}, "", errMalformed},
		{"not ASCII", []string{"Bearer " + secret + "é"}, "", errMalformed},
		{"more than 16 KiB", []string{"Bearer k" + long}, "", errMalformed},
	} {
		t.Run(c.name, func(t *testing.T) { c.check(t, keyfuncs.Bearer(), "Authorization", "bearer token") })
	}
}

// No key shows the secret, and different secrets have different keys.
func FuzzSecrets(f *testing.F) {
	for _, seed := range []string{"", secret, "a b", `"`, "é", strings.Repeat("k", 20_000), "\x00", "id=1; id=2", hashOfSecret} {
		f.Add(seed, seed+"x")
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		for name, c := range map[string]struct {
			f              keyfuncs.Func
			header, before string
		}{
			"Bearer": {keyfuncs.Bearer(), "Authorization", "Bearer "},
			"Cookie": {keyfuncs.Cookie("id"), "Cookie", "id="},
			"Header": {keyfuncs.Hashed(keyfuncs.Header("X-Api-Key")), "X-Api-Key", ""},
		} {
			keyA, errA := c.f(request("", c.header, c.before+a))
			keyB, errB := c.f(request("", c.header, c.before+b))
			for _, err := range []error{errA, errB} {
				if err != nil && !errors.Is(err, keyfuncs.ErrAbsent) && !isError(err, errMalformed) {
					t.Fatalf("%s: %v", name, err)
				}
			}
			if (keyA == "") != (errA != nil) || errA == nil && len(keyA) != hashLength {
				t.Fatalf("%s: %q: key %q, error %v", name, a, keyA, errA)
			}
			// Cookies lose their quotation marks and what follows a semicolon, headers spaces.
			// What has dots may be a JWT, which has several spellings: see FuzzBearer.
			if errA == nil && errB == nil && name == "Bearer" && !strings.Contains(a, ".") &&
				(keyA == keyB) != (strings.Trim(a, " \t") == strings.Trim(b, " \t")) {
				t.Fatalf("%s: %q and %q: keys %q and %q", name, a, b, keyA, keyB)
			}
		}
	})
}

func TestFrom(t *testing.T) {
	for _, c := range []struct {
		name, text string
		ok         bool
		want       string
		err        error
	}{
		{"a text", secret, true, secret, nil},
		{"none", "", false, "", keyfuncs.ErrAbsent},
		{"not verified", secret, false, "", keyfuncs.ErrAbsent},
		{"empty", "", true, "", keyfuncs.ErrAbsent},
	} {
		t.Run(c.name, func(t *testing.T) {
			want := request("203.0.113.7:80", "")
			f := keyfuncs.From(func(r *http.Request) (string, bool) {
				if r != want {
					t.Error("asked about another request")
				}
				return c.text, c.ok
			})
			if got, err := f(want); got != c.want || !errors.Is(err, c.err) {
				t.Errorf("got %q, %v; want %q, %v", got, err, c.want, c.err)
			}
		})
	}
	wantKey(t, keyfuncs.Hashed(keyfuncs.From(func(*http.Request) (string, bool) { return secret, true })), request("", ""), hashOfSecret)
}

func TestPathValue(t *testing.T) {
	var key string
	var err error
	mux := http.NewServeMux()
	mux.HandleFunc("GET /tenants/{tenant}/{rest...}", func(_ http.ResponseWriter, r *http.Request) {
		key, err = keyfuncs.PathValue(r.URL.Query().Get("of"))(r)
	})
	for _, c := range []struct {
		path, want string
		err        error
	}{
		{"/tenants/acme/?of=tenant", "acme", nil},
		{"/tenants/a%2Fb%20c/?of=tenant", "a/b c", nil},
		{"/tenants/acme/a/b?of=rest", "a/b", nil},
		{"/tenants/acme/?of=rest", "", keyfuncs.ErrAbsent},
		{"/tenants/acme/?of=other", "", keyfuncs.ErrAbsent},
		{"/tenants/" + strings.Repeat("k", 4096) + "/?of=tenant", strings.Repeat("k", 4096), nil},
		{"/tenants/" + strings.Repeat("k", 4097) + "/?of=tenant", "", errMalformed},
	} {
		key, err = "not asked", nil
		mux.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", c.path, nil))
		if key != c.want || !isError(err, c.err) {
			t.Errorf("%.40s: got %.40q, %v; want %.40q, %v", c.path, key, err, c.want, c.err)
		}
		if err != nil && !strings.Contains(err.Error(), "path value") {
			t.Error(err)
		}
	}
	wantError(t, keyfuncs.PathValue("tenant"), keyfuncs.ErrAbsent)
}

// A rule that does not apply to those who have, or lack, a text applies if there is doubt.
func TestHasLacks(t *testing.T) {
	for _, c := range []struct {
		name       string
		f          keyfuncs.Func
		has, lacks bool
	}{
		{"there", constant("a"), true, false},
		{"absent", failing(keyfuncs.ErrAbsent), false, true},
		{"malformed", failing(errMalformed), false, false},
		{"broken", failing(errBroken), false, false},
		{"the program's fault", failing(keyfuncs.ErrProgram), false, false},
		{"empty key", constant(""), false, false},
	} {
		r := new(http.Request)
		if has, lacks := keyfuncs.Has(c.f)(r), keyfuncs.Lacks(c.f)(r); has != c.has || lacks != c.lacks {
			t.Errorf("%s: Has %v, Lacks %v; want %v, %v", c.name, has, lacks, c.has, c.lacks)
		}
	}
}

// What is wrong in a program shows when it starts.
func TestMorePanics(t *testing.T) {
	for name, wrong := range map[string]func(){
		"Hashed":            func() { keyfuncs.Hashed(nil) },
		"Cookie, empty":     func() { keyfuncs.Cookie("") },
		"Cookie, no name":   func() { keyfuncs.Cookie("a=b") },
		"From":              func() { keyfuncs.From(nil) },
		"Network":           func() { keyfuncs.Network(nil, 32, 64) },
		"PathValue":         func() { keyfuncs.PathValue("") },
		"Has":               func() { keyfuncs.Has(nil) },
		"Lacks":             func() { keyfuncs.Lacks(nil) },
		"In":                func() { keyfuncs.In(nil, "192.0.2.0/24") },
		"OlderThan, -1ns":   func() { cookies(t).OlderThan(-1) },
		"OlderThan, maxAge": func() { cookies(t).OlderThan(maxAge) },
		"Handler":           func() { cookies(t).Handler(nil) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				text, _ := recover().(string)
				function, _, _ := strings.Cut(name, ",")
				if !strings.HasPrefix(text, "headgate: keyfuncs: "+function) {
					t.Errorf("recovered %q", text)
				}
			}()
			wrong()
		})
	}
}
