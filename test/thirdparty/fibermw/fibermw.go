// Package fibermw is an adapter for Fiber, as docs/frameworks.md explains.
package fibermw

import (
	"errors"
	"maps"
	"net/http"
	"strings"

	"github.com/gofiber/fiber/v2"
	"github.com/gofiber/fiber/v2/middleware/adaptor"

	"github.com/headgate/headgate/adapter"
	"github.com/headgate/headgate/nethttp"
)

// Framework makes keys: Framework.Value, Framework.Key and the like.
var Framework = adapter.Framework[*fiber.Ctx]{Name: "fibermw", Request: request, Get: get, Set: set}

// Use puts a guard in front of the handlers that follow. Its keys may be from Fiber's context.
func Use(guard *nethttp.Guard) fiber.Handler {
	carries := guard.Mount(nethttp.Ends) // panics if the guard is nil
	return func(c *fiber.Ctx) error {
		r, err := adaptor.ConvertRequest(c, true)
		if err != nil {
			return err
		}
		c.Locals(requestKey{}, r)
		visit := Framework.Enter(c, carries)
		defer visit.End()

		v := guard.Check(visit.Request)
		Framework.Keep(c, v)
		if v.Status() != 0 {
			return adaptor.HTTPHandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				maps.Copy(w.Header(), fields(c))
				c.Response().Header.Reset() // the adaptor adds
				guard.Refuse(w, visit.Request, v)
			})(c)
		}
		header := fields(c)
		v.SetFields(header)
		for name, values := range header {
			c.Response().Header.Del(name)
			for _, value := range values {
				c.Response().Header.Add(name, value)
			}
		}

		begun, _ := v.Begin(visit.Request)
		c.SetUserContext(begun.Context()) // for nethttp.SetCost
		status := http.StatusInternalServerError
		defer func() { // also after a panic
			v.End(nethttp.Outcome{Status: status, Written: int64(len(c.Response().Body()))})
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

// fields returns those that the response has: a guard adds to them, also to those of other guards.
// That of the body's type is left to who writes the body.
func fields(c *fiber.Ctx) http.Header {
	h := make(http.Header)
	c.Response().Header.VisitAll(func(name, value []byte) { h.Add(string(name), string(value)) })
	h.Del("Content-Type")
	return h
}

// requestKey is the key of the request in Fiber's context.
type requestKey struct{}

func request(c *fiber.Ctx) *http.Request {
	r, _ := c.Locals(requestKey{}).(*http.Request)
	return r
}

// get copies texts, as Fiber uses the bytes of a request for the next one.
func get(c *fiber.Ctx, name string) any {
	value := c.Locals(name)
	if text, ok := value.(string); ok {
		return strings.Clone(text)
	}
	return value
}

func set(c *fiber.Ctx, name string, value any) { c.Locals(name, value) }
