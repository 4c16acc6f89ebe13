// Fleet shows one limit on sockets over several servers, and how it holds when a server is
// killed and when Redis loses all data.
//
//	go run ./examples/fleet
//
// It starts three server processes, with an embedded Redis unless -redis names one. Each
// user may have 3 WebSockets open at once, over all servers, and keeps trying to open more,
// on one server after the other. Then
//
//	one server is killed  its slots become free, and the users take them on other servers
//	Redis is emptied      the servers report their counts again, and no user reconnects
//	the others shut down  and no slot is held any more
//
// The terminal and http://127.0.0.1:8080/ show the sockets live. At the end, or when the story
// cannot continue, the program prints a summary of expected and measured values. It exits with
// status 1 if they differ. Ctrl-C ends it earlier, without a summary.
//
// Flags change the numbers, such as -servers 5 -users 20 -limit 2 -ttl 10s. In a Redis given
// with -redis redis://localhost:6379/0 it deletes its own keys, and no others.
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
)

// options are the command line, of the fleet and of each of its servers.
type options struct {
	limit  int64
	ttl    time.Duration
	redis  string
	prefix string // of the keys in Redis

	servers, users int
	addr           string
	pause          time.Duration
	slack          time.Duration
}

func main() {
	var o options
	flag.Int64Var(&o.limit, "limit", 3, "allow `n` sockets open at once for each user")
	flag.DurationVar(&o.ttl, "ttl", 3*time.Second, "consider a server dead after this `time` of silence")
	flag.StringVar(&o.redis, "redis", "", "keep the counts in the Redis at this `URL`, such as redis://localhost:6379/0")
	flag.StringVar(&o.prefix, "prefix", fmt.Sprintf("fleet-%d", os.Getpid()), "begin keys in Redis with this `text`, and delete all keys that do")
	flag.IntVar(&o.servers, "servers", 3, "`number` of servers, 2 to 9")
	flag.IntVar(&o.users, "users", 6, "`number` of users, 1 to 26")
	flag.StringVar(&o.addr, "addr", "127.0.0.1:8080", "serve the page on this `address`")
	flag.DurationVar(&o.pause, "pause", 2*time.Second, "wait this `time` between events")
	flag.DurationVar(&o.slack, "slack", time.Second, "allow this `time` more than promised, for a busy machine")
	server := flag.Bool("server", false, "run one of the servers: the program starts itself with this")
	flag.Parse()
	switch {
	case flag.NArg() > 0:
		exit(2, fmt.Errorf("unexpected argument %q", flag.Arg(0)))
	case o.limit < 1 || o.servers < 2 || o.servers > 9 || o.users < 1 || o.users > 26 || o.ttl < 100*time.Millisecond || o.pause < 0 || o.slack < 0:
		exit(2, errors.New("-limit must be at least 1, -servers 2 to 9, -users 1 to 26, -ttl at least 100ms, -pause and -slack not negative"))
	}

	if *server {
		if err := serve(o); err != nil {
			exit(1, err)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // so that a second Ctrl-C ends the process at once
	if err := run(ctx, o); err != nil && !errors.Is(err, context.Canceled) {
		exit(1, err)
	}
}

// run plays the story and shows it. It returns an error if something was not as expected.
func run(ctx context.Context, o options) error {
	listener, err := net.Listen("tcp", o.addr)
	if err != nil {
		return err
	}
	f, err := newFleet(ctx, o)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	defer f.close()

	page := &http.Server{Handler: f.board.routes(), ReadHeaderTimeout: 5 * time.Second}
	go func() { _ = page.Serve(listener) }()
	defer page.Close()

	fmt.Printf("Watch on http://%v/, or here:\n\n", listener.Addr())
	return f.show(ctx, os.Stdout)
}

// show plays the story, shows it, and prints the summary unless ctx is done.
func (f *fleet) show(ctx context.Context, out *os.File) error {
	watching, end := context.WithCancel(ctx)
	shown := f.board.print(watching, out)
	err := f.play(ctx)
	end()
	<-shown
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return errors.Join(err, f.summary(out))
}

// exit prints err on one line and ends the program, with status 2 for an invalid command
// line and 1 for later errors.
func exit(status int, err error) {
	fmt.Fprintln(os.Stderr, "fleet:", strings.ReplaceAll(err.Error(), "\n", "; "))
	os.Exit(status)
}
