// Package hertzmw is middleware for Hertz, as docs/frameworks.md explains. It is built on exported names only, so it may
// be copied into a program.
package hertzmw

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/cloudwego/hertz/pkg/app"

	"github.com/headgate/headgate/keyfuncs"
)

// A visit is a request to Hertz on its way through a guard: the writer that the guard gets.
type visit struct {
	c        *app.RequestContext
	header   http.Header
	admitted bool
}

type visitKey struct{}

// Middleware puts a guard of package nethttp in front of the handlers that follow. Hertz does not tell whether a client
// has hung up.
func Middleware(guard interface {
	Handler(http.Handler) http.Handler
}) app.HandlerFunc {
	h := guard.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Context().Value(visitKey{}).(*visit).next(w, r)
	}))
	return func(ctx context.Context, c *app.RequestContext) {
		v := &visit{c: c, header: fields(c)}
		r, err := convert(context.WithValue(ctx, visitKey{}, v), c)
		if err != nil {
			c.AbortWithStatus(http.StatusBadRequest)
			return
		}
		h.ServeHTTP(v, r)
	}
}

// convert returns the request of net/http. It copies all, as Hertz uses the bytes again.
func convert(ctx context.Context, c *app.RequestContext) (*http.Request, error) {
	r, err := http.NewRequestWithContext(ctx, string(c.Method()), string(c.Request.URI().FullURI()), http.NoBody)
	if err != nil {
		return nil, err
	}
	c.Request.Header.VisitAll(func(name, value []byte) { r.Header.Add(string(name), string(value)) })
	r.Host, r.RequestURI = string(c.Host()), string(c.Request.RequestURI())
	if c.GetConn() != nil {
		r.RemoteAddr = c.RemoteAddr().String() // of the connection; c.ClientIP believes headers
	}
	return r, nil
}

// fields returns those that the response has: a guard adds to them, also to those of other guards.
// That of the body's type is left to who writes the body.
func fields(c *app.RequestContext) http.Header {
	h := make(http.Header)
	c.Response.Header.VisitAll(func(name, value []byte) { h.Add(string(name), string(value)) })
	h.Del("Content-Type")
	return h
}

// next calls the handlers, and tells the guard what they have answered.
func (v *visit) next(w http.ResponseWriter, r *http.Request) {
	v.copyFields()
	v.admitted = true
	v.c.Next(r.Context()) // for nethttp.SetCost and nethttp.VerdictFrom
	w.WriteHeader(v.c.Response.StatusCode())
	_, _ = w.Write(v.c.Response.Body())
}

func (v *visit) copyFields() {
	for name, values := range v.header {
		v.c.Response.Header.Del(name)
		for _, value := range values {
			v.c.Response.Header.Add(name, value)
		}
	}
}

// Header, WriteHeader and Write write a refusal.
func (v *visit) Header() http.Header { return v.header }

func (v *visit) WriteHeader(status int) {
	if !v.admitted {
		v.copyFields()
		v.c.AbortWithStatus(status)
	}
}

func (v *visit) Write(p []byte) (int, error) {
	if v.admitted { // Hertz has it already
		return len(p), nil
	}
	return v.c.Write(p)
}

// Key makes a key of Hertz' context.
func Key(get func(*app.RequestContext) (string, error)) keyfuncs.Func {
	return func(r *http.Request) (string, error) {
		v, ok := r.Context().Value(visitKey{}).(*visit)
		if !ok {
			return "", fmt.Errorf("%w: the guard is not behind hertzmw.Middleware", keyfuncs.ErrProgram)
		}
		return get(v.c)
	}
}

// Value makes a key of a text that c.Get returns. It is copied, as Hertz uses the bytes of a request for the next one.
func Value(name string) keyfuncs.Func {
	return Key(func(c *app.RequestContext) (string, error) {
		switch value, _ := c.Get(name); value := value.(type) {
		case nil:
			return "", fmt.Errorf("%w: %s", keyfuncs.ErrAbsent, name)
		case string:
			return strings.Clone(value), nil
		default:
			return "", fmt.Errorf("%w: %s is a %T", keyfuncs.ErrProgram, name, value)
		}
	})
}
