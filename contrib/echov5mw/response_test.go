package echov5mw_test

import (
	"net/http"
	"testing"

	"github.com/labstack/echo/v5"

	"github.com/headgate/headgate/contrib/echov5mw"
	"github.com/headgate/headgate/internal/guardtest"
	"github.com/headgate/headgate/websocketmw"
)

// Under a writer that hides Echo's own, a socket's handler gets the guard's writer too, and
// what runs outside has its writer back.
func TestSocketsUnderForeignWriter(t *testing.T) {
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
	}, echov5mw.Use(guardtest.Sockets(t, websocketmw.Config{})))
	e.GET("/", func(c *echo.Context) error {
		within = c.Response()
		if _, ok := websocketmw.FromContext(c.Request().Context()); !ok {
			t.Error("no socket in the context")
		}
		return nil
	})
	guardtest.Serve(e, guardtest.Upgrade("/", "X-Own", "anna"))
	if within == nil || within == foreign {
		t.Errorf("the handler got a %T", within)
	}
}
