package ginmw_test

import (
	"bufio"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/ginmw"
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

// What is settled for an upgrade that fails is the response that Gin will send.
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
	e := gin.New()
	e.Use(gin.CustomRecoveryWithWriter(nil, func(c *gin.Context, _ any) { c.AbortWithStatus(502) }))
	e.Use(ginmw.Use(guard))
	e.GET("/json", func(c *gin.Context) { c.JSON(400, "no") })
	e.GET("/string", func(c *gin.Context) { c.String(403, "forbidden") })
	e.GET("/changed", func(c *gin.Context) {
		c.Status(200)
		c.JSON(400, "no")
	})
	e.GET("/abort", func(c *gin.Context) { c.AbortWithStatus(403) })
	e.GET("/panic", func(*gin.Context) { panic("boom") })
	e.GET("/cost", func(c *gin.Context) { nethttp.SetCost(c.Request.Context(), "upgrades", 7) })
	e.GET("/upgraded", func(c *gin.Context) {
		if conn, _, err := c.Writer.Hijack(); err == nil {
			conn.Close()
		}
	})
	for path, want := range map[string]nethttp.Outcome{
		"/json":     {Status: 400, Written: 4, Cost: 1},
		"/string":   {Status: 403, Written: 9, Cost: 1},
		"/changed":  {Status: 400, Written: 4, Cost: 1},
		"/abort":    {Status: 403, Cost: 1},
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
