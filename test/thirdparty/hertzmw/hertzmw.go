// Package hertzmw is an adapter for Hertz, as docs/frameworks.md explains.
package hertzmw

import (
	"context"
	"net/http"
	"strings"

	"github.com/cloudwego/hertz/pkg/app"

	"github.com/headgate/headgate/adapter"
	"github.com/headgate/headgate/nethttp"
)

// Framework makes keys: Framework.Value, Framework.Key and the like.
var Framework = adapter.Framework[*app.RequestContext]{Name: "hertzmw", Request: request, Get: get, Set: set}

// Use puts a guard in front of the handlers that follow. Its keys may be from Hertz' context.
func Use(guard *nethttp.Guard) app.HandlerFunc {
	carries := guard.Mount(nethttp.Ends) // panics if the guard is nil
	return func(ctx context.Context, c *app.RequestContext) {
		r, err := convert(ctx, c)
		if err != nil {
			c.AbortWithStatus(http.StatusBadRequest)
			return
		}
		c.Set(requestName, r)
		visit := Framework.Enter(c, carries)
		defer visit.End()

		v := guard.Check(visit.Request)
		Framework.Keep(c, v)
		w := &writer{c, fields(c)}
		if v.Status() != 0 {
			c.Abort()
			guard.Refuse(w, visit.Request, v)
			return
		}
		v.SetFields(w.header)
		w.replace()

		begun, _ := v.Begin(visit.Request)
		status := http.StatusInternalServerError
		defer func() { // also after a panic
			v.End(nethttp.Outcome{Status: status, Written: int64(len(c.Response.Body()))})
		}()
		c.Next(begun.Context()) // for nethttp.SetCost
		status = c.Response.StatusCode()
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

// A writer writes a refusal.
type writer struct {
	c      *app.RequestContext
	header http.Header
}

func (w *writer) Header() http.Header { return w.header }

func (w *writer) WriteHeader(status int) {
	w.replace()
	w.c.SetStatusCode(status)
}

func (w *writer) Write(p []byte) (int, error) { return w.c.Write(p) }

// replace gives the fields to the response.
func (w *writer) replace() {
	for name, values := range w.header {
		w.c.Response.Header.Del(name)
		for _, value := range values {
			w.c.Response.Header.Add(name, value)
		}
	}
}

// fields returns those that the response has: a guard adds to them, also to those of other guards.
// That of the body's type is left to who writes the body.
func fields(c *app.RequestContext) http.Header {
	h := make(http.Header)
	c.Response.Header.VisitAll(func(name, value []byte) { h.Add(string(name), string(value)) })
	h.Del("Content-Type")
	return h
}

// requestName is the name of the request in Hertz' context.
const requestName = "hertzmw.request"

func request(c *app.RequestContext) *http.Request {
	r, _ := c.Value(requestName).(*http.Request)
	return r
}

// get copies texts, as Hertz uses the bytes of a request for the next one.
func get(c *app.RequestContext, name string) any {
	value, _ := c.Get(name)
	if text, ok := value.(string); ok {
		return strings.Clone(text)
	}
	return value
}

func set(c *app.RequestContext, name string, value any) { c.Set(name, value) }
