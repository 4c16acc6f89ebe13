package echomw_test

import (
	"net/http"
	"testing"

	"github.com/labstack/echo/v4"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/echomw"
	"github.com/headgate/headgate/nethttp"
	"github.com/headgate/headgate/websocketmw"
)

// What is settled for an error within another is the status that the default error handler writes.
func TestSettleOfInnerError(t *testing.T) {
	var got nethttp.Outcome
	rule := newRule(t, "inner", core.SlidingLog(core.PerHour(1000)))
	rule.Settle = func(_ *http.Request, o nethttp.Outcome) int64 {
		got = o
		return o.Cost
	}
	e := echo.New()
	e.Use(echomw.Use(newGuard(t, nethttp.Config{Rules: []nethttp.Rule{rule}})))
	e.GET("/", func(echo.Context) error { return echo.ErrBadGateway.WithInternal(echo.ErrForbidden) })
	if serve(e, request("GET", "/", "X-Own", "anna")); got != (nethttp.Outcome{Status: 403, Cost: 1}) {
		t.Errorf("%+v", got)
	}
}

// The writer is put back after an upgrade.
func TestSocketsPutTheWriterBack(t *testing.T) {
	guard := core.Must(websocketmw.New(websocketmw.Config{Rules: []nethttp.Rule{{
		Slots: core.Must(core.NewSlots(store, "writers", 1)), Key: own,
	}}}))
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
	}, echomw.Use(guard))
	e.GET("/", func(c echo.Context) error { return c.NoContent(204) })
	for _, client := range []string{"", "anna"} {
		serve(e, request("GET", "/", "X-Own", client, "Connection", "Upgrade", "Upgrade", "websocket",
			"Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="))
	}
}
