// Package fibermw is an adapter for Fiber, as docs/adapters.md explains.
package fibermw

import (
	"errors"
	"net/http"
	"strings"

	"github.com/gofiber/fiber/v2"
	"github.com/gofiber/fiber/v2/middleware/adaptor"

	"github.com/headgate/headgate/adapter"
	"github.com/headgate/headgate/nethttp"
)

// A Key returns the key that is charged from Fiber's context.
type Key = adapter.Key[*fiber.Ctx]

// Framework makes keys: Framework.First, Framework.Key and the like.
var Framework = adapter.Framework[*fiber.Ctx]{Name: "fibermw", Request: request}

// Local charges what an earlier handler stored with c.Locals, such as the signed-in user.
func Local(name string) Key {
	return Framework.Value("local "+name, func(c *fiber.Ctx) any { return c.Locals(name) })
}

// Limit charges the keys of the guard's rules.
func Limit(guard *nethttp.Guard) fiber.Handler { return limit(guard, nil) }

// LimitBy charges keys from Fiber's context, one for each rule.
func LimitBy(guard *nethttp.Guard, keys ...Key) fiber.Handler {
	return limit(guard, Framework.Keys("LimitBy", keys...))
}

func limit(guard *nethttp.Guard, keys []Key) fiber.Handler {
	functions := guard.Mount(adapter.Count(keys)) // panics if they do not go together
	return func(c *fiber.Ctx) error {
		r, err := adaptor.ConvertRequest(c, true)
		if err != nil {
			return err
		}
		c.Locals(requestKey{}, r)
		if functions {
			r = Framework.With(c) // for Plan, Cost, Settle and the like
		}

		var v nethttp.Verdict
		guard.CheckTo(&v, r, cloned(adapter.By(keys, c)))
		if v.Status() != 0 { // also that of a preflight
			return adaptor.HTTPHandlerFunc(func(w http.ResponseWriter, _ *http.Request) { guard.Refuse(w, r, &v) })(c)
		}
		fields := make(http.Header)
		v.SetFields(fields)
		for name, values := range fields {
			c.Set(name, strings.Join(values, ", "))
		}

		tracked, settle := v.Track(r)
		if settle == nil { // no rule has Settle
			return c.Next()
		}
		c.SetUserContext(tracked.Context()) // for nethttp.SetCost
		status := http.StatusInternalServerError
		defer func() { // also after a panic
			settle(nethttp.Outcome{Status: status, Written: int64(len(c.Response().Body()))})
		}()
		err = c.Next()
		var fault *fiber.Error
		switch {
		case err == nil:
			status = c.Response().StatusCode()
		case errors.As(err, &fault): // which Fiber writes later
			status = fault.Code
		}
		return err
	}
}

// requestKey is the key of the request in Fiber's context.
type requestKey struct{}

func request(c *fiber.Ctx) *http.Request {
	r, _ := c.Locals(requestKey{}).(*http.Request)
	return r
}

// cloned copies keys, as Fiber uses the bytes of a request for the next one.
func cloned(key func(rule int) (string, error)) func(rule int) (string, error) {
	if key == nil {
		return nil
	}
	return func(rule int) (string, error) {
		text, err := key(rule)
		return strings.Clone(text), err
	}
}
