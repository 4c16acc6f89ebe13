// Code generated from package echomw by go generate ./echomw; DO NOT EDIT.

package echov5mw_test

import (
	"bufio"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/labstack/echo/v5"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/echov5mw"
	"github.com/headgate/headgate/nethttp"
	"github.com/headgate/headgate/websocketmw"
)

// hijackable is a recorder whose connection can be hijacked.
type hijackable struct{ *httptest.ResponseRecorder }

func (hijackable) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	server, client := net.Pipe()
	client.Close()
	return server, nil, nil
}

// What is settled for an upgrade that fails is the response that Echo will send.
func TestSocketsSettle(t *testing.T) {
	var got nethttp.Outcome
	rule := newRule(t, "upgrades", core.SlidingLog(core.PerHour(1000)))
	rule.Settle = func(_ *http.Request, o nethttp.Outcome) int64 {
		got = o
		return o.Cost
	}
	slots, err := core.NewSlots(store, "settled", 1)
	if err != nil {
		t.Fatal(err)
	}
	guard, err := websocketmw.New(websocketmw.Config{
		Rules: []nethttp.Rule{{Slots: slots, Key: own}, rule},
	})
	if err != nil {
		t.Fatal(err)
	}
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
	e.Use(echov5mw.Use(guard))
	e.GET("/json", func(c *echo.Context) error { return c.JSON(400, 1234) })
	e.GET("/error", func(*echo.Context) error { return echo.NewHTTPError(403, "no") })
	e.GET("/own", func(*echo.Context) error { return errAny })
	e.GET("/late", func(c *echo.Context) error {
		c.JSON(400, 1234)
		return errAny
	})
	e.GET("/panic", func(*echo.Context) error { panic("boom") })
	e.GET("/cost", func(c *echo.Context) error {
		nethttp.SetCost(c.Request().Context(), "upgrades", 7)
		return nil
	})
	e.GET("/upgraded", func(c *echo.Context) error {
		conn, _, err := http.NewResponseController(c.Response()).Hijack()
		if err == nil {
			conn.Close()
		}
		return errAny
	})
	for path, want := range map[string]nethttp.Outcome{
		"/json":     {Status: 400, Written: 5, Cost: 1},
		"/error":    {Status: 403, Cost: 1},
		"/own":      {Status: 500, Cost: 1},
		"/late":     {Status: 400, Written: 5, Cost: 1},
		"/panic":    {Status: 500, Cost: 1},
		"/cost":     {Status: 200, Cost: 7},
		"/nowhere":  {Status: 404, Cost: 1},
		"/upgraded": {}, // not settled
	} {
		got = nethttp.Outcome{}
		e.ServeHTTP(hijackable{httptest.NewRecorder()}, request("GET", path, "X-Own", "anna", "Connection", "Upgrade",
			"Upgrade", "websocket", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="))
		if got != want || guard.Len() != 0 {
			t.Errorf("%s: %+v, want %+v; %d sockets", path, got, want, guard.Len())
		}
	}
}
