package ginmw_test

import (
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/headgate/headgate/ginmw"
	"github.com/headgate/headgate/internal/guardtest"
	"github.com/headgate/headgate/nethttp"
)

// What is settled for an upgrade that fails is the response that Gin will send.
func TestSocketsSettle(t *testing.T) {
	outcomes := guardtest.SettlingSockets(t)
	e := gin.New()
	e.Use(gin.CustomRecoveryWithWriter(nil, func(c *gin.Context, _ any) { c.AbortWithStatus(502) }))
	e.Use(ginmw.Use(outcomes.Sockets))
	e.GET("/json", func(c *gin.Context) { c.JSON(400, "no") })
	e.GET("/string", func(c *gin.Context) { c.String(403, "forbidden") })
	e.GET("/changed", func(c *gin.Context) {
		c.Status(200)
		c.JSON(400, "no")
	})
	e.GET("/abort", func(c *gin.Context) { c.AbortWithStatus(403) })
	e.GET("/panic", func(*gin.Context) { panic("boom") })
	e.GET("/cost", func(c *gin.Context) { nethttp.SetCost(c.Request.Context(), "settled", 7) })
	e.GET("/upgraded", func(c *gin.Context) {
		if conn, _, err := c.Writer.Hijack(); err == nil {
			conn.Close()
		}
	})
	outcomes.Want(t, e, map[string]nethttp.Outcome{
		"/json":     {Status: 400, Written: 4, Cost: 1},
		"/string":   {Status: 403, Written: 9, Cost: 1},
		"/changed":  {Status: 400, Written: 4, Cost: 1},
		"/abort":    {Status: 403, Cost: 1},
		"/panic":    {Status: 500, Cost: 1},
		"/cost":     {Status: 200, Cost: 7},
		"/nowhere":  {Status: 404, Cost: 1},
		"/upgraded": {}, // not settled
	})
}
