// Websocket is a chat with gorilla/websocket and three limits. Each user may have three sockets at
// once, and all users of a client address twelve. Each socket may send five messages per second.
//
//	go run ./examples/websocket
//
// Open sockets on http://127.0.0.1:8080/, which counts them, on whichever server they are. The
// fourth takes the place of the oldest, if that is older than ten seconds; otherwise it is
// refused. Browsers do not show why, but other clients get a response:
//
//	curl -i -b user=ann -H 'Connection: Upgrade' -H 'Upgrade: websocket' \
//		-H 'Sec-WebSocket-Version: 13' -H 'Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==' \
//		http://127.0.0.1:8080/chat
//
//	HTTP/1.1 429 Too Many Requests
//	RateLimit: "user";r=0
//	RateLimit-Policy: "user";q=3;qu="concurrent-requests", "address";q=12;qu="concurrent-requests"
//	Retry-After: 7
//
// Ctrl-C stops the server, which closes its sockets with 1001. With -redis
// redis://localhost:6379/0, all servers started with the same flag share the limits on sockets. The
// slots of a server that is killed are free after 15 seconds.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/redisstore"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:8080", "listen on this `address`")
	redisURL := flag.String("redis", "", "count the sockets of all servers in the Redis at this `URL`, such as redis://localhost:6379/0")
	flag.Parse()
	if flag.NArg() > 0 {
		exit(2, fmt.Errorf("unexpected argument %q", flag.Arg(0)))
	}
	store, err := newStore(*redisURL)
	if err != nil {
		exit(2, err)
	}
	chat, err := newChat(store)
	if err != nil {
		exit(2, err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // so that a second Ctrl-C ends the process at once
	listener, err := net.Listen("tcp", *addr)
	if err != nil {
		exit(1, err)
	}
	fmt.Printf("Listening on http://%v/, where a page opens sockets. Ctrl-C stops the server.\n", listener.Addr())
	if err := serve(ctx, listener, chat); err != nil {
		exit(1, err)
	}
}

// newStore returns the store that counts sockets: in this process, or in Redis.
func newStore(url string) (core.Store, error) {
	if url == "" {
		return new(core.MemoryStore), nil
	}
	s, err := redisstore.Open(url, redisstore.Config{})
	if err != nil {
		return nil, fmt.Errorf("-redis: %w", err)
	}
	return s, nil
}

// serve serves until ctx is done, then closes the sockets and waits for the requests in
// progress.
func serve(ctx context.Context, listener net.Listener, chat *chat) error {
	server := &http.Server{Handler: chat.routes(), ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}

	deadline, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return errors.Join(chat.guard.Shutdown(deadline), server.Shutdown(deadline))
}

// exit prints err on one line and ends the program, with status 2 for an invalid command
// line and 1 for later errors.
func exit(status int, err error) {
	fmt.Fprintln(os.Stderr, "websocket:", strings.ReplaceAll(err.Error(), "\n", "; "))
	os.Exit(status)
}
