package keyfuncs_test

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/keyfuncs"
)

const (
	cookieName = "__Host-client"
	maxAge     = 24 * time.Hour
)

// Secrets of exactly the size that is needed.
var (
	oldSecret = bytes.Repeat([]byte("o"), 32)
	newSecret = bytes.Repeat([]byte("n"), 32)
)

func cookies(t testing.TB, secrets ...[]byte) *keyfuncs.SignedCookie {
	t.Helper()
	return named(t, cookieName, secrets...)
}

func named(t testing.TB, name string, secrets ...[]byte) *keyfuncs.SignedCookie {
	t.Helper()
	if secrets == nil {
		secrets = [][]byte{newSecret}
	}
	c, err := keyfuncs.NewSignedCookie(name, maxAge, secrets...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// with returns a request with cookies of the usual name.
func with(values ...string) *http.Request {
	r := request("203.0.113.7:4711", "")
	for _, value := range values {
		r.Header.Add("Cookie", cookieName+"="+value)
	}
	return r
}

func idOf(t testing.TB, c *keyfuncs.SignedCookie, values ...string) string {
	t.Helper()
	key, err := c.Key(with(values...))
	if err != nil || len(key) != hashLength {
		t.Fatalf("got %q, %v", key, err)
	}
	return key
}

func refuses(t testing.TB, f keyfuncs.Func, values ...string) {
	t.Helper()
	key, err := f(with(values...))
	if key != "" || !errors.Is(err, keyfuncs.ErrAbsent) {
		t.Errorf("%q: got %q, %v", values, key, err)
	}
	if err != nil && err.Error() != "headgate: keyfuncs: absent: signed cookie "+cookieName {
		t.Errorf("the error tells why: %v", err)
	}
}

func TestSignedCookie(t *testing.T) {
	c := cookies(t)
	a, b := c.New(time.Now()), c.New(time.Now())
	if a.Value == b.Value || idOf(t, c, a.Value) == idOf(t, c, b.Value) {
		t.Error("two cookies are one")
	}
	if idOf(t, c, a.Value) != idOf(t, c, `"`+a.Value+`"`) {
		t.Error("quotation marks make another client")
	}
	if len(a.Value) != 76 || a.Name != cookieName || a.Path != "/" || a.Domain != "" || a.MaxAge != 86400 ||
		!a.Secure || !a.HttpOnly || a.SameSite != http.SameSiteLaxMode {
		t.Errorf("%v", a)
	}
	if err := a.Valid(); err != nil {
		t.Error(err)
	}
	refuses(t, c.Key)
	refuses(t, c.Key, "")
}

// The format is a promise: servers of the next version read it too. The value was made
// by another program:
//
//	b = b'\x01' + (946684800000).to_bytes(8, 'big') + bytes(range(16))
//	b += hmac.digest(b'n' * 32, b'headgate cookie\0__Host-client\0' + b, 'sha256')
//	base64.urlsafe_b64encode(b)
func TestSignedCookieFormat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // it is 2000-01-01 there
		const value = "AQAAANxqz6wAAAECAwQFBgcICQoLDA0ODyQorwfExh0izsmbRUVOd0k_xVfhTyd1hzmeR4oSBbNf"
		if got := idOf(t, cookies(t), value); got != "AAECAwQFBgcICQoLDA0ODw" {
			t.Error(got)
		}
		// Another version, rightly signed.
		refuses(t, cookies(t).Key, "AgAAANxqz6wAAAECAwQFBgcICQoLDA0OD_eRB2Vv0WI5DwzaVEImd2yCvpSAnyxcN4xHYnHLCquE")
	})
}

func TestSignedCookieAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cookies(t)
		older := c.OlderThan(10 * time.Minute)
		issued := time.Now().Add(123456 * time.Microsecond) // what is below a millisecond is lost
		value := c.New(issued).Value
		issued = issued.Truncate(time.Millisecond)
		for _, step := range []struct {
			age        time.Duration
			valid, old bool
		}{
			{0, true, false},
			{10*time.Minute - 1, true, false},
			{10 * time.Minute, true, true},
			{maxAge - 1, true, true},
			{maxAge, false, false},
			{10 * maxAge, false, false},
		} {
			time.Sleep(time.Until(issued.Add(step.age)))
			if step.valid {
				idOf(t, c, value)
			} else {
				refuses(t, c.Key, value)
			}
			if step.old {
				wantKey(t, older, with(value), idOf(t, c, value))
			} else {
				refuses(t, older, value)
			}
		}
	})
}

// The clock of the server that issued the cookie may be ahead, by a minute.
func TestSignedCookieSkew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cookies(t)
		idOf(t, c, c.New(time.Now().Add(time.Minute)).Value)
		refuses(t, c.Key, c.New(time.Now().Add(time.Minute+time.Millisecond)).Value)
		refuses(t, c.OlderThan(0), c.New(time.Now().Add(time.Millisecond)).Value)
		idOf(t, c, c.New(time.Now()).Value)
		now := c.New(time.Now()).Value
		wantKey(t, c.OlderThan(0), with(now), idOf(t, c, now))
	})
}

func TestSignedCookieMaxAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cookies(t)
		for _, s := range []struct {
			ago  time.Duration
			want int
		}{
			{0, 86400},
			{1, 86400},
			{time.Second, 86399},
			{maxAge - 1, 1},
			{maxAge, -1},
			{10 * maxAge, -1},
			{-time.Minute, 86460},
		} {
			if got := c.New(time.Now().Add(-s.ago)).MaxAge; got != s.want {
				t.Errorf("issued %v ago: MaxAge %d, want %d", s.ago, got, s.want)
			}
		}
		refuses(t, c.Key, c.New(time.Time{}).Value)
	})
}

// Two servers replace a secret as NewSignedCookie describes, one after the other. At no
// time does one replace a cookie of the other.
func TestSignedCookieRotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		steps := []*keyfuncs.SignedCookie{
			cookies(t, oldSecret),
			cookies(t, oldSecret, newSecret),
			cookies(t, newSecret, oldSecret),
			cookies(t, newSecret),
		}
		servers := []*keyfuncs.SignedCookie{steps[0], steps[0]}
		ids := map[string]string{} // of the cookies issued
		meet := func() {
			t.Helper()
			for _, server := range servers {
				value := server.New(time.Now()).Value
				ids[value] = idOf(t, server, value)
			}
			for value, id := range ids {
				for _, server := range servers {
					if idOf(t, server, value) != id {
						t.Error("another identifier")
					}
					w := httptest.NewRecorder()
					server.Handler(http.NotFoundHandler()).ServeHTTP(w, with(value))
					if len(w.Result().Cookies()) > 0 {
						t.Error("a valid cookie was replaced")
					}
				}
			}
		}
		meet()
		for i, step := range steps[1:] {
			if i == 2 { // the old secret is about to be removed
				time.Sleep(maxAge)
				clear(ids)
			}
			for i := range servers {
				servers[i] = step
				meet()
			}
		}

		// A new secret that is first at once is unknown to the other server.
		refuses(t, steps[0].Key, steps[2].New(time.Now()).Value)
		// Without the old secret, its cookies are none.
		refuses(t, steps[3].Key, steps[0].New(time.Now()).Value)
	})
}

// A cookie of one name, or secrets of one use, are worth nothing for another.
func TestSignedCookieOfAnotherName(t *testing.T) {
	c := cookies(t)
	for _, name := range []string{"client", "__Host-clien", "__Host-client2", "__host-client"} {
		refuses(t, c.Key, named(t, name).New(time.Now()).Value)
	}
}

func TestSignedCookieSeveral(t *testing.T) {
	c := cookies(t)
	a, b := c.New(time.Now()).Value, c.New(time.Now()).Value
	expired, young := c.New(time.Now().Add(-maxAge)).Value, c.New(time.Now()).Value
	for _, s := range []struct {
		values []string
		want   string
	}{
		{[]string{a, b}, a},
		{[]string{b, a}, b},
		{[]string{"forged", "", expired, a}, a},
		{[]string{"forged", a, expired, b}, a},
	} {
		if idOf(t, c, s.values...) != idOf(t, c, s.want) {
			t.Errorf("%q", s.values)
		}
	}
	refuses(t, c.Key, "1", "2", "3", "4", a)
	old := c.New(time.Now().Add(-time.Hour)).Value
	wantKey(t, c.OlderThan(time.Minute), with(young, old), idOf(t, c, old))
}

// However a cookie is changed, it is none; and however it is forged, the client is
// charged by its address, as if it had none.
func TestForgedCookies(t *testing.T) {
	c := cookies(t)
	key := first(c.Key, keyfuncs.RemoteAddr())
	value := c.New(time.Now()).Value
	idOf(t, c, value)
	raw, err := base64.RawURLEncoding.DecodeString(value)
	if err != nil {
		t.Fatal(err)
	}
	var forged []string
	for i := range 8 * len(raw) {
		changed := bytes.Clone(raw)
		changed[i/8] ^= 1 << (i % 8)
		forged = append(forged, base64.RawURLEncoding.EncodeToString(changed))
	}
	for i := range value {
		forged = append(forged, value[:i], value[i+1:], value[:i]+"A"+value[i:], value[:i]+"+"+value[i+1:], value[:i]+"="+value[i+1:])
	}
	zero := make([]byte, len(raw))
	zero[0] = 1
	forged = append(forged, value+"=", value+value, base64.RawURLEncoding.EncodeToString(zero), strings.Repeat("A", 1<<16),
		base64.RawURLEncoding.EncodeToString(raw[:25]), value+".", "."+value)
	for _, f := range forged {
		if f == value {
			continue // a letter that was an A already
		}
		refuses(t, c.Key, f)
		wantKey(t, key, with(f), "b:203.0.113.7")
	}
	// Line breaks do not reach a server, but what is decoded may come from anywhere.
	for _, gap := range []string{"\r", "\n"} {
		refuses(t, c.Key, value[:40]+gap+value[41:], value[:40]+gap+value[40:])
	}
}

// An attacker who has many cookies cannot put one together that nobody issued.
func TestSplicedCookies(t *testing.T) {
	c := cookies(t)
	rnd := rand.New(rand.NewPCG(3, 1))
	issued := map[string]string{}
	var raws [][]byte
	for range 50 {
		value := c.New(time.Now().Add(-time.Duration(rnd.Int64N(int64(maxAge) / 2)))).Value
		issued[value] = idOf(t, c, value)
		raw, _ := base64.RawURLEncoding.DecodeString(value)
		raws = append(raws, raw)
	}
	for range 20_000 {
		a, b := raws[rnd.IntN(len(raws))], raws[rnd.IntN(len(raws))]
		cut := rnd.IntN(len(a) + 1)
		value := base64.RawURLEncoding.EncodeToString(append(bytes.Clone(a[:cut]), b[cut:]...))
		if id, ok := issued[value]; ok {
			wantKey(t, c.Key, with(value), id)
		} else {
			refuses(t, c.Key, value)
		}
	}
}

// verifySlowly is the obvious reading of a cookie's value.
func verifySlowly(value string, secret []byte) bool {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(value)
	if err != nil || len(raw) != 57 || strings.ContainsAny(value, "\r\n") {
		return false
	}
	h := hmac.New(sha256.New, secret)
	h.Write([]byte("headgate cookie\x00" + cookieName + "\x00"))
	h.Write(raw[:25])
	age := time.Since(time.UnixMilli(int64(binary.BigEndian.Uint64(raw[1:9]))))
	return raw[0] == 1 && bytes.Equal(h.Sum(nil), raw[25:]) && -time.Minute <= age && age < maxAge
}

func FuzzSignedCookie(f *testing.F) {
	c := cookies(f, newSecret, oldSecret)
	for _, seed := range []string{
		"", "AQ", strings.Repeat("A", 76), strings.Repeat("_", 76), c.New(time.Now()).Value, c.New(time.Now().Add(-maxAge)).Value,
		cookies(f, oldSecret).New(time.Now()).Value, named(f, "other").New(time.Now()).Value,
	} {
		f.Add(seed)
	}
	either := first(c.Key, keyfuncs.RemoteAddr())
	f.Fuzz(func(t *testing.T, value string) {
		r := with(value)
		key, err := c.Key(r)
		// net/http parses the header, as a cookie or as several.
		genuine := false
		for _, cookie := range r.CookiesNamed(cookieName)[:min(4, len(r.CookiesNamed(cookieName)))] {
			genuine = genuine || verifySlowly(cookie.Value, newSecret) || verifySlowly(cookie.Value, oldSecret)
		}
		if genuine != (err == nil) || (err == nil) != (len(key) == hashLength) {
			t.Fatalf("%q, really %v: got %q, %v", value, genuine, key, err)
		}
		if err != nil {
			if !errors.Is(err, keyfuncs.ErrAbsent) {
				t.Fatalf("%q: %v", value, err)
			}
			wantKey(t, either, r, "b:203.0.113.7")
		}
	})
}

func TestSignedCookieFaults(t *testing.T) {
	for _, c := range []struct {
		name    string
		maxAge  time.Duration
		secrets []string
		want    []string
	}{
		{"", time.Hour, []string{string(newSecret)}, []string{`not the name of a cookie: ""`}},
		{"a b", time.Hour, []string{string(newSecret)}, []string{`not the name of a cookie: "a b"`}},
		{"a", time.Second - 1, []string{string(newSecret)}, []string{"valid for 999.999999ms"}},
		{"a", 400*24*time.Hour + 1, []string{string(newSecret)}, []string{"not for 1s to 9600h0m0s"}},
		{"a", time.Hour, nil, []string{"no secret"}},
		{"a", time.Hour, []string{string(newSecret), secret}, []string{"secret 2 to sign cookies with: of 6 bytes, fewer than 32"}},
		{"a", time.Hour, []string{string(newSecret[1:])}, []string{"secret 1 to sign cookies with: of 31 bytes"}},
		{"", 0, []string{secret, ""}, []string{"name", "valid for 0s", "secret 1", "secret 2"}},
		{"a", time.Second, []string{string(newSecret)}, nil},
		{"a", 400 * 24 * time.Hour, []string{string(newSecret)}, nil},
	} {
		var secrets [][]byte
		for _, s := range c.secrets {
			secrets = append(secrets, []byte(s))
		}
		cookie, err := keyfuncs.NewSignedCookie(c.name, c.maxAge, secrets...)
		if (cookie == nil) != (err != nil) || (err == nil) != (c.want == nil) {
			t.Fatalf("%+v: %v, %v", c, cookie, err)
		}
		if err == nil {
			continue
		}
		lines := strings.Split(err.Error(), "\n")
		if len(lines) != len(c.want) {
			t.Fatalf("%+v: %v", c, err)
		}
		for i, want := range c.want {
			if !strings.HasPrefix(lines[i], "headgate: keyfuncs: ") || !strings.Contains(lines[i], want) || strings.Contains(lines[i], secret) {
				t.Errorf("%q, not with %q", lines[i], want)
			}
		}
	}
}

// Printing shows no secret, and changing what was given changes nothing.
func TestSignedCookieKeepsItsSecrets(t *testing.T) {
	given := bytes.Clone(newSecret)
	c := cookies(t, given)
	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%x"} {
		for _, v := range []any{c, *c} {
			text := fmt.Sprintf(format, v)
			if strings.Contains(text, "nnnn") || strings.Contains(text, "6e6e6e") || strings.Contains(text, "110, 110") {
				t.Errorf("%s: %s", format, text)
			}
		}
	}
	clear(given)
	idOf(t, cookies(t), c.New(time.Now()).Value)
}

func TestSignedCookieHandler(t *testing.T) {
	c := cookies(t)
	handler := c.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(204) }))
	ask := func(values ...string) (set string) {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, with(values...))
		if w.Code != 204 {
			t.Fatal(w.Code)
		}
		given := w.Result().Cookies()
		if caches := w.Header().Get("Cache-Control"); (caches == `no-cache="Set-Cookie"`) != (len(given) == 1) {
			t.Errorf("%d cookies, Cache-Control %q", len(given), caches)
		}
		if len(given) == 0 {
			return ""
		}
		if age := given[0].MaxAge; age != 86400 {
			t.Errorf("MaxAge %d", age)
		}
		return given[0].Value
	}
	value := ask()
	id := idOf(t, c, value)
	if again := ask(value); again != "" {
		t.Error("a second cookie for a client that has one")
	}
	for _, none := range []string{"", "forged", c.New(time.Now().Add(-maxAge)).Value} {
		if set := ask(none); set == "" || idOf(t, c, set) == id {
			t.Errorf("for %q: %q", none, set)
		}
	}
}

func TestSignedCookieConcurrently(t *testing.T) {
	c := cookies(t, newSecret, oldSecret)
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			for range 200 {
				value := c.New(time.Now()).Value
				if key, err := c.Key(with(value)); err != nil || key == "" {
					t.Errorf("got %q, %v", key, err)
				}
				refuses(t, c.Key, value[:75]+"!")
			}
		})
	}
	wait.Wait()
}

func BenchmarkSignedCookie(b *testing.B) {
	c := cookies(b)
	r := with(c.New(time.Now()).Value)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Key(r); err != nil {
			b.Fatal(err)
		}
	}
}
