// Gin is an API behind nginx. Its users have plans, whoever guesses passwords is stopped, and
// each user may have three WebSockets open. Servers share these limits through Redis.
//
//	go run ./examples/gin
//	go run ./examples/gin -redis redis://localhost:6379/0 -proxies 10.0.0.0/8
//
// This file has all that concerns limits, app.go what they protect. Ctrl-C stops the server.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/ginmw"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
	"github.com/headgate/headgate/websocketmw"
)

// routes returns the API, and the guard of its sockets, which has to be shut down. address is
// the key of clients, for what is in front of the server.
func routes(store core.Store, address keyfuncs.Func) (http.Handler, *websocketmw.Guard) {
	user := ginmw.Value("user")
	api, errAPI := nethttp.New(nethttp.Config{Rates: []nethttp.Rate{{
		Limiter: core.NewLimiter(store, "user", core.SlidingLog(10, time.Minute)).WithPlan("gold", core.SlidingLog(100, time.Minute)),
		Key:     keyfuncs.First(keyfuncs.Tag("user", user), keyfuncs.Tag("ip", address)),
		Plan:    ginmw.Value("plan"),
	}}})
	passwords, errPasswords := nethttp.New(nethttp.Config{Rates: []nethttp.Rate{{
		Limiter: core.NewLimiter(store, "passwords", core.SlidingLog(3, time.Hour)),
		Key:     address,
		Settle:  nethttp.FailuresOnly,
	}}})
	if err := errors.Join(errAPI, errPasswords); err != nil {
		log.Fatal(err)
	}
	sockets := websocketmw.MaxOpen(store, "sockets", user, 3)

	r := gin.New()
	r.Use(gin.Recovery(), authenticate)
	r.GET("/", index)
	r.POST("/login", ginmw.Middleware(passwords), login)
	r.GET("/api/hello", ginmw.Middleware(api), hello)
	r.GET("/api/echo", ginmw.Middleware(sockets), echo)
	return r, sockets
}

func main() {
	var store core.Store = new(core.MemoryStore)
	address := keyfuncs.RemoteAddr()
	addr := flag.String("addr", "127.0.0.1:8080", "listen on this `address`")
	flag.Func("redis", "share the limits through the Redis at this `URL`, such as redis://localhost:6379/0", func(url string) (err error) {
		store, err = redisstore.Open(url, redisstore.Config{})
		return err
	})
	flag.Func("proxies", "believe X-Forwarded-For if it is from these `networks`, such as 10.0.0.0/8", func(list string) error {
		networks := strings.Split(list, ",")
		if err := keyfuncs.CheckNetworks(networks...); err != nil {
			return err
		}
		address = keyfuncs.XForwardedFor(networks...)
		return nil
	})
	flag.Parse()
	handler, sockets := routes(store, address)
	if err := serve(*addr, handler, sockets); err != nil {
		log.Fatal("gin: ", err)
	}
}

// serve serves until Ctrl-C, then closes the sockets and waits for the requests in progress.
func serve(addr string, handler http.Handler, sockets *websocketmw.Guard) error {
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	fmt.Printf("Listening on http://%v/\n", listener.Addr())
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	stopped := make(chan error, 1)
	context.AfterFunc(ctx, func() {
		stop() // a second Ctrl-C ends the process at once
		stopped <- errors.Join(sockets.Shutdown(context.Background()), server.Shutdown(context.Background()))
	})
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-stopped
}
