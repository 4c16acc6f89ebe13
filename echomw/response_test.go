package echomw_test

import (
	"testing"

	"github.com/labstack/echo/v4"

	"github.com/headgate/headgate/echomw"
	"github.com/headgate/headgate/internal/guardtest"
	"github.com/headgate/headgate/nethttp"
	"github.com/headgate/headgate/websocketmw"
)

// What is settled for an error within another is the status that the default error handler writes.
func TestSettleOfInnerError(t *testing.T) {
	outcomes := guardtest.Settling(t)
	e := echo.New()
	e.Use(echomw.Use(outcomes.Guard))
	e.GET("/", func(echo.Context) error { return echo.ErrBadGateway.WithInternal(echo.ErrForbidden) })
	outcomes.Want(t, e, map[string]nethttp.Outcome{"/": {Status: 403, Cost: 1}})
}

// The writer is put back after an upgrade.
func TestSocketsPutTheWriterBack(t *testing.T) {
	e := echo.New()
	e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			before := c.Response().Writer
			err := next(c)
			if c.Response().Writer != before {
				t.Errorf("after the handler, the writer is a %T", c.Response().Writer)
			}
			return err
		}
	}, echomw.Use(guardtest.Sockets(t, websocketmw.Config{})))
	e.GET("/", func(c echo.Context) error { return c.NoContent(204) })
	for _, client := range []string{"", "anna"} {
		guardtest.Serve(e, guardtest.Upgrade("/", "X-Own", client))
	}
}
