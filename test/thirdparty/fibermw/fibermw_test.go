package fibermw_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gofiber/fiber/v2"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
	"github.com/headgate/headgate/test/thirdparty/fibermw"
)

const document = `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota Exceeded","status":429,"violated-policies":["api"]}`

func limiter(name string, p core.Policy) *core.Limiter {
	return core.NewLimiter(new(core.MemoryStore), name, p)
}

func guardOf(t *testing.T, c nethttp.Config) *nethttp.Guard {
	t.Helper()
	guard, err := nethttp.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return guard
}

const day = 24 * time.Hour

// ask returns the status, what is left, and the body.
func ask(t *testing.T, app *fiber.App, method, path string, fields ...string) string {
	t.Helper()
	r := httptest.NewRequest(method, path, nil)
	for i := 0; i < len(fields); i += 2 {
		r.Header.Set(fields[i], fields[i+1])
	}
	resp, err := app.Test(r, -1)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(resp.StatusCode, " ", resp.Header.Get("Ratelimit"), " ", resp.Header.Get("Content-Type"), " ", string(body))
}

func is(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %s\nwant %s", what, got, want)
	}
}

// A request gets what it gets under net/http.
func TestLimit(t *testing.T) {
	guard := nethttp.Limit(new(core.MemoryStore), "api", keyfuncs.Header("X-Client"), core.FixedWindow(2, day))
	app := fiber.New()
	app.Use(fibermw.Middleware(guard))
	app.Get("/", func(c *fiber.Ctx) error { return c.SendString("hello") })
	left := func(s string) string {
		before, after, _ := strings.Cut(s, ";t=")
		return before + after[strings.IndexByte(after, ' '):]
	}
	is(t, "first", left(ask(t, app, "GET", "/", "X-Client", "anna")), `200 "api";r=1 text/plain; charset=utf-8 hello`)
	is(t, "second, no route", left(ask(t, app, "GET", "/none", "X-Client", "anna")), `404 "api";r=0 text/plain; charset=utf-8 Cannot GET /none`)
	is(t, "third", left(ask(t, app, "GET", "/", "X-Client", "anna")), `429 "api";r=0 application/problem+json `+document)
	is(t, "another", left(ask(t, app, "GET", "/", "X-Client", "ben")), `200 "api";r=1 text/plain; charset=utf-8 hello`)
	is(t, "nobody", ask(t, app, "GET", "/"), `400  application/problem+json {"type":"about:blank","title":"Bad Request","status":400}`)
}

// What c.Locals holds can be the key, and be used by Plan and Settle.
func TestContext(t *testing.T) {
	free := limiter("api", core.FixedWindow(10, day)).WithPlan("gold", core.FixedWindow(100, day))
	var settled []string
	guard := guardOf(t, nethttp.Config{KeepVerdict: true, Rates: []nethttp.Rate{{
		Limiter: free, Key: fibermw.Value("user"),
		Plan: fibermw.Key(func(c *fiber.Ctx) (string, error) {
			if c.Locals("user") != "anna" {
				return "", keyfuncs.ErrAbsent
			}
			plan, _ := c.Locals("plan").(string)
			return plan, nil
		}),
		Settle: func(_ *http.Request, o nethttp.Outcome) int64 {
			settled = append(settled, fmt.Sprint(o.Status, " ", o.Bytes, " ", o.Cost))
			return o.Cost
		},
	}}})
	app := fiber.New()
	app.Use(func(c *fiber.Ctx) (err error) {
		defer func() {
			if recover() != nil {
				err = fiber.ErrBadGateway
			}
		}()
		return c.Next()
	}, func(c *fiber.Ctx) error {
		if user := c.Get("X-User"); user != "" {
			c.Locals("user", user)
		}
		c.Locals("plan", "gold")
		return c.Next()
	}, fibermw.Middleware(guard))
	app.Get("/", func(c *fiber.Ctx) error {
		if v, ok := nethttp.VerdictFrom(c.UserContext()); !ok || v.Status != 0 {
			t.Errorf("the verdict is %v", v)
		}
		if err := nethttp.SetCost(c.UserContext(), free, 3); err != nil {
			return err
		}
		return c.SendString("hello")
	})
	app.Get("/fails", func(*fiber.Ctx) error { return fiber.ErrTeapot })
	app.Get("/panics", func(*fiber.Ctx) error { panic("boom") })
	for _, test := range []struct{ path, user, left string }{
		{"/", "anna", `200 "api";r=99`}, {"/", "anna", `200 "api";r=96`}, {"/", "ben", `200 "api";r=9`},
		{"/fails", "ben", `418 "api";r=6`}, {"/panics", "ben", `502 "api";r=5`}, {"/", "", "400 "},
	} {
		var fields []string
		if test.user != "" {
			fields = []string{"X-User", test.user}
		}
		if got := ask(t, app, "GET", test.path, fields...); !strings.HasPrefix(got, test.left) {
			t.Errorf("%s of %q: %s, want %s", test.path, test.user, got, test.left)
		}
	}
	is(t, "settled", strings.Join(settled, ", "), "200 5 3, 200 5 3, 200 5 3, 418 0 1, 500 0 1")
}

// What is wrong with the program is an error where it is made, or at the first request.
func TestFaults(t *testing.T) {
	func() {
		defer func() {
			if text, _ := recover().(string); !strings.HasPrefix(text, "headgate: ") {
				t.Errorf("no guard: panic %q", text)
			}
		}()
		fibermw.Middleware((*nethttp.Guard)(nil))
	}()
	if _, err := fibermw.Value("user")(httptest.NewRequest("GET", "/", nil)); !errors.Is(err, keyfuncs.ErrProgram) {
		t.Errorf("elsewhere: %v", err)
	}
}

// Guards within each other add to what was set before them, and replace what they have to.
func TestNested(t *testing.T) {
	limit := func(name string, n int64, fields func(http.Header, *nethttp.Verdict)) fiber.Handler {
		return fibermw.Middleware(guardOf(t, nethttp.Config{
			Fields: fields,
			Rates:  []nethttp.Rate{{Limiter: limiter(name, core.FixedWindow(n, day)), Key: keyfuncs.Header("X-Client")}},
		}))
	}
	outer, inner := limit("outer", 10, nil), limit("inner", 1, nil)
	app := fiber.New()
	app.Use(func(c *fiber.Ctx) error {
		c.Cookie(&fiber.Cookie{Name: "a", Value: "1"})
		c.Cookie(&fiber.Cookie{Name: "b", Value: "2"})
		c.Set("Cache-Control", "public")
		return c.Next()
	})
	app.Get("/", outer, outer, inner, func(c *fiber.Ctx) error { return c.SendString("hello") })
	app.Get("/classic", limit("outer", 10, nethttp.XRateLimitFields), limit("inner", 1, nethttp.XRateLimitFields), func(c *fiber.Ctx) error { return c.SendString("hello") })
	for _, test := range []struct{ path, policies, remaining, cache, kind string }{
		{"/", `["outer";q=10;w=86400 "inner";q=1;w=86400]`, "[]", "[public]", "text/plain; charset=utf-8"},
		{"/", `["outer";q=10;w=86400 "inner";q=1;w=86400]`, "[]", "[no-store]", "application/problem+json"},
		{"/classic", "[]", "[0]", "[public]", "text/plain; charset=utf-8"},
		{"/classic", "[]", "[0]", "[no-store]", "application/problem+json"},
	} {
		r := httptest.NewRequest("GET", test.path, nil)
		r.Header.Set("X-Client", "anna")
		resp, err := app.Test(r, -1)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		is(t, "RateLimit-Policy", fmt.Sprint(resp.Header.Values("RateLimit-Policy")), test.policies)
		is(t, "X-RateLimit-Remaining", fmt.Sprint(resp.Header.Values("X-RateLimit-Remaining")), test.remaining)
		is(t, "Cache-Control", fmt.Sprint(resp.Header.Values("Cache-Control")), test.cache)
		is(t, "Set-Cookie", fmt.Sprint(len(resp.Cookies())), "2")
		is(t, "Content-Type", fmt.Sprint(resp.Header.Values("Content-Type")), "["+test.kind+"]")
	}
}
