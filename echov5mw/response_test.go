package echov5mw_test

import (
	"net/http"
	"testing"

	"github.com/labstack/echo/v5"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/echov5mw"
	"github.com/headgate/headgate/nethttp"
	"github.com/headgate/headgate/websocketmw"
)

// Under a writer that hides Echo's own, a socket's handler gets the guard's writer too, and
// what runs outside has its writer back.
func TestSocketsUnderForeignWriter(t *testing.T) {
	slots, err := core.NewSlots(store, "sockets", 1)
	if err != nil {
		t.Fatal(err)
	}
	guard, err := websocketmw.New(websocketmw.Config{Rules: []nethttp.Rule{{Slots: slots, Key: own}}})
	if err != nil {
		t.Fatal(err)
	}
	e := echo.New()
	var foreign, within http.ResponseWriter
	e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c *echo.Context) error {
			foreign = struct{ http.ResponseWriter }{c.Response()} // it has no Unwrap
			c.SetResponse(foreign)
			err := next(c)
			if c.Response() != foreign {
				t.Errorf("after the handler, the writer is a %T", c.Response())
			}
			return err
		}
	}, echov5mw.Use(guard))
	e.GET("/", func(c *echo.Context) error {
		within = c.Response()
		if _, ok := websocketmw.FromContext(c.Request().Context()); !ok {
			t.Error("no socket in the context")
		}
		return nil
	})
	serve(e, request("GET", "/", "X-Own", "anna", "Connection", "Upgrade", "Upgrade", "websocket",
		"Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="))
	if within == nil || within == foreign {
		t.Errorf("the handler got a %T", within)
	}
}
