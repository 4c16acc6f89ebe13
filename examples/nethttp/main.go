// Nethttp is a net/http server with two limits that are charged together. One is for each session.
// The larger one is for the address that sessions share.
//
//	go run ./examples/nethttp
//
// Send eleven requests without a cookie, of which the last is refused:
//
//	curl -s -o /dev/null -w '%{http_code}\n' 'http://127.0.0.1:8080/api/hello?[1-11]'
//
// A session is a cookie that the server signs. It counts once it is a minute old. Until then, its
// requests share one session limit of their address with requests that have no cookie. So dropping
// the cookie gains nothing. Collecting cookies does not help beyond the limit of the address.
//
// With -redis redis://localhost:6379/0 and the same SECRET in the environment, all servers
// share the limits. Ctrl-C stops the server.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:8080", "listen on this `address`")
	redisURL := flag.String("redis", "", "share the limits through the Redis at this `URL`, such as redis://localhost:6379/0")
	flag.Parse()
	if err := run(*addr, *redisURL); err != nil {
		fmt.Fprintln(os.Stderr, "nethttp:", err)
		os.Exit(1)
	}
}

const cookieName = "session"

// secret returns the key that signs the cookies: 32 bytes or more, such as from
// openssl rand -base64 32.
func secret() []byte {
	if s := os.Getenv("SECRET"); s != "" {
		return []byte(s)
	}
	return []byte(rand.Text() + rand.Text()) // cookies are valid until the process ends
}

// routes returns the handler of the application.
func routes(store core.Store) (http.Handler, error) {
	cookie, err := keyfuncs.NewSignedCookie(cookieName, 7*24*time.Hour, secret())
	if err != nil {
		return nil, err
	}
	perSession, err := core.New(store, "session", core.SlidingLog(core.PerMinute(10)))
	if err != nil {
		return nil, err
	}
	perAddress, err := core.New(store, "address", core.SlidingLog(core.PerMinute(40)))
	if err != nil {
		return nil, err
	}
	session, address := cookie.OlderThan(time.Minute), keyfuncs.RemoteAddr()
	guard, err := nethttp.New(nethttp.Config{Rules: []nethttp.Rule{
		{Limiter: perSession, Key: keyfuncs.First(session, address)},
		{Limiter: perAddress, Key: address},
	}})
	if err != nil {
		return nil, err
	}

	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", index)
	mux.Handle("GET /api/hello", guard.Handler(cookie.Handler(http.HandlerFunc(hello)))) // a refused client gets no cookie
	return mux, nil
}

func hello(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	io.WriteString(w, "hello\n")
}

func index(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	fmt.Fprintf(w, `A net/http server. /api/hello is limited to 10 requests in any minute for each session,
and to 40 for all sessions of an address. A session is a cookie. It counts once it is a
minute old: until then all newcomers of an address share one limit of 10. Try

	curl -i http://%[1]s/api/hello
	curl -i -c cookies -b cookies http://%[1]s/api/hello
`, r.Host)
}

// run serves until Ctrl-C, then waits for the requests in progress.
func run(addr, redisURL string) error {
	store, err := newStore(redisURL)
	if err != nil {
		return err
	}
	handler, err := routes(store)
	if err != nil {
		return err
	}
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
		stopped <- server.Shutdown(context.Background())
	})
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-stopped
}

// newStore returns the store of the limits: in this process, or in Redis.
func newStore(url string) (core.Store, error) {
	if url == "" {
		return memstore.New(memstore.Config{}), nil
	}
	s, err := redisstore.OpenURL(url, redisstore.Config{})
	if err != nil {
		return nil, fmt.Errorf("-redis: %w", err)
	}
	return s, nil
}
