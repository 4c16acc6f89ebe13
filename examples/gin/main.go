// Gin is an API behind nginx. Its users have plans, whoever guesses passwords is stopped, and
// each user may have three WebSockets open. Servers share these limits through Redis.
//
//	go run ./examples/gin
//	go run ./examples/gin -redis redis://localhost:6379/0 -proxies 10.0.0.0/8
//
// limits.go has the limits, app.go what they protect. Ctrl-C stops the server.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/keyfuncs"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:8080", "listen on this `address`")
	redisURL := flag.String("redis", "", "share the limits through the Redis at this `URL`, such as redis://localhost:6379/0")
	proxies := flag.String("proxies", "", "believe X-Forwarded-For if it is from these `networks`, such as 10.0.0.0/8")
	flag.Parse()
	if err := run(*addr, *redisURL, *proxies); err != nil {
		log.Fatal("gin: ", err)
	}
}

// run serves until Ctrl-C, then closes the sockets and waits for the requests in progress.
func run(addr, redisURL, proxies string) (err error) {
	gin.SetMode(gin.ReleaseMode)
	var store core.FullStore = memstore.New(memstore.Config{})
	if redisURL != "" {
		if store, err = redisstore.OpenURL(redisURL, redisstore.Config{}); err != nil {
			return err
		}
	}
	address := keyfuncs.RemoteAddr()
	if proxies != "" {
		if address, err = keyfuncs.XForwardedFor(strings.Split(proxies, ",")...); err != nil {
			return err
		}
	}
	handler, sockets := routes(store, address)

	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	fmt.Printf("Listening on http://%v/\n", listener.Addr())
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
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
