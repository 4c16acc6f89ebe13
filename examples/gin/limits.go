package main

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/ginmw"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
	"github.com/headgate/headgate/websocketmw"
)

// routes returns the API, and the guard of its sockets, which has to be shut down. address is
// the key function for what is in front of the server.
func routes(store core.FullStore, address keyfuncs.Func) (http.Handler, *websocketmw.Guard) {
	free := core.Must(core.New(store, "api", core.SlidingLog(core.PerMinute(10))))
	gold := core.Must(free.With(core.SlidingLog(core.PerMinute(100))))
	api := core.Must(nethttp.New(nethttp.Config{Rules: []nethttp.Rule{{
		Limiter: free,
		Key:     keyfuncs.First(keyfuncs.Context(userKey{}), address),
		Plan: func(r *http.Request, _ string) *core.Limiter {
			if u, _ := r.Context().Value(userKey{}).(user); u.gold {
				return gold
			}
			return free
		},
	}}}))
	passwords := core.Must(nethttp.New(nethttp.Config{Rules: []nethttp.Rule{{
		Limiter: core.Must(core.New(store, "passwords", core.SlidingLog(core.PerHour(3)))),
		Key:     address,
		Settle:  failures,
	}}}))
	sockets := core.Must(websocketmw.LimitIn(store, "sockets", keyfuncs.Context(userKey{}), 3))

	r := gin.New()
	r.Use(gin.Recovery(), authenticate)
	r.GET("/", index)
	r.POST("/login", ginmw.Limit(passwords), login)
	r.GET("/api/hello", ginmw.Limit(api), hello)
	r.GET("/api/echo", ginmw.Sockets(sockets), gin.WrapH(echo))
	return r, sockets
}

// failures gives back the charge of a login that succeeded, and of no other: errors of another
// kind are easy to cause.
func failures(_ *http.Request, o nethttp.Outcome) int64 {
	if o.Status < 400 {
		return 0
	}
	return o.Cost
}
