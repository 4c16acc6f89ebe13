package echov5mw_test

import (
	"net/http"
	"testing"

	"github.com/labstack/echo/v5"

	"github.com/headgate/headgate/contrib/echov5mw"
	"github.com/headgate/headgate/internal/guardtest"
	"github.com/headgate/headgate/nethttp"
)

// What is settled for an upgrade that fails is the response that Echo will send.
func TestSocketsSettle(t *testing.T) {
	outcomes := guardtest.SettlingSockets(t)
	e := echo.New()
	e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c *echo.Context) (err error) {
			defer func() {
				if recover() != nil {
					err = echo.ErrBadGateway
				}
			}()
			return next(c)
		}
	})
	e.Use(echov5mw.Use(outcomes.Sockets))
	e.GET("/json", func(c *echo.Context) error { return c.JSON(400, 1234) })
	e.GET("/error", func(*echo.Context) error { return echo.NewHTTPError(403, "no") })
	e.GET("/guardtest.Own", func(*echo.Context) error { return guardtest.ErrAny })
	e.GET("/late", func(c *echo.Context) error {
		c.JSON(400, 1234)
		return guardtest.ErrAny
	})
	e.GET("/panic", func(*echo.Context) error { panic("boom") })
	e.GET("/cost", func(c *echo.Context) error {
		nethttp.SetCost(c.Request().Context(), "settled", 7)
		return nil
	})
	e.GET("/upgraded", func(c *echo.Context) error {
		conn, _, err := http.NewResponseController(c.Response()).Hijack()
		if err == nil {
			conn.Close()
		}
		return guardtest.ErrAny
	})
	outcomes.Want(t, e, map[string]nethttp.Outcome{
		"/json":          {Status: 400, Written: 5, Cost: 1},
		"/error":         {Status: 403, Cost: 1},
		"/guardtest.Own": {Status: 500, Cost: 1},
		"/late":          {Status: 400, Written: 5, Cost: 1},
		"/panic":         {Status: 500, Cost: 1},
		"/cost":          {Status: 200, Cost: 7},
		"/nowhere":       {Status: 404, Cost: 1},
		"/upgraded":      {}, // not settled
	})
}
