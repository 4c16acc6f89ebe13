// Package fibermw is middleware for Fiber, as docs/frameworks.md explains. It is built on exported names only, so it may
// be copied into a program.
package fibermw

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/gofiber/fiber/v2"
	"github.com/gofiber/fiber/v2/middleware/adaptor"

	"github.com/headgate/headgate/keyfuncs"
)

// A visit is a request to Fiber on its way through a guard: the writer that the guard gets.
type visit struct {
	c        *fiber.Ctx
	header   http.Header
	admitted bool
	err      error // of the handlers
}

type visitKey struct{}

// Middleware puts a guard of package nethttp in front of the handlers that follow. Fiber does not tell whether a client
// has hung up.
func Middleware(guard interface {
	Handler(http.Handler) http.Handler
}) fiber.Handler {
	h := guard.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Context().Value(visitKey{}).(*visit).next(w, r)
	}))
	return func(c *fiber.Ctx) error {
		r, err := adaptor.ConvertRequest(c, true)
		if err != nil {
			return err
		}
		v := &visit{c: c, header: fields(c)}
		h.ServeHTTP(v, r.WithContext(context.WithValue(r.Context(), visitKey{}, v)))
		return v.err
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

// next calls the handlers, and tells the guard what they have answered.
func (v *visit) next(w http.ResponseWriter, r *http.Request) {
	v.copyFields()
	v.admitted = true
	v.c.SetUserContext(r.Context()) // for nethttp.SetCost and nethttp.VerdictFrom
	v.err = v.c.Next()
	status, fault := v.c.Response().StatusCode(), (*fiber.Error)(nil)
	switch {
	case errors.As(v.err, &fault): // which Fiber writes later
		status = fault.Code
	case v.err != nil:
		status = http.StatusInternalServerError
	}
	w.WriteHeader(status)
	_, _ = w.Write(v.c.Response().Body())
}

func (v *visit) copyFields() {
	for name, values := range v.header {
		v.c.Response().Header.Del(name)
		for _, value := range values {
			v.c.Response().Header.Add(name, value)
		}
	}
}

// Header, WriteHeader and Write write a refusal.
func (v *visit) Header() http.Header { return v.header }

func (v *visit) WriteHeader(status int) {
	if !v.admitted {
		v.copyFields()
		v.c.Status(status)
	}
}

func (v *visit) Write(p []byte) (int, error) {
	if v.admitted { // Fiber has it already
		return len(p), nil
	}
	return v.c.Write(p)
}

// Key makes a key of Fiber's context.
func Key(get func(*fiber.Ctx) (string, error)) keyfuncs.Func {
	return func(r *http.Request) (string, error) {
		v, ok := r.Context().Value(visitKey{}).(*visit)
		if !ok {
			return "", fmt.Errorf("%w: the guard is not behind fibermw.Middleware", keyfuncs.ErrProgram)
		}
		return get(v.c)
	}
}

// Value makes a key of a text that c.Locals holds. It is copied, as Fiber uses the bytes of a request for the next one.
func Value(name string) keyfuncs.Func {
	return Key(func(c *fiber.Ctx) (string, error) {
		switch value := c.Locals(name).(type) {
		case nil:
			return "", fmt.Errorf("%w: %s", keyfuncs.ErrAbsent, name)
		case string:
			return strings.Clone(value), nil
		default:
			return "", fmt.Errorf("%w: %s is a %T", keyfuncs.ErrProgram, name, value)
		}
	})
}
