package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// A server is a redis-server for this program alone.
type server struct {
	addr  string
	admin *redis.Client
	stop  func() error
}

// startRedis starts redis-server on a free port. It keeps nothing on disk.
func startRedis(ctx context.Context) (*server, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	addr := l.Addr().String()
	_, port, _ := net.SplitHostPort(addr)
	if err := l.Close(); err != nil { // nobody is given the port again so soon
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no")
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	s := &server{addr: addr, admin: redis.NewClient(&redis.Options{Addr: addr})}
	s.stop = func() error {
		_ = s.admin.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // says that it was killed
		return nil
	}
	for range 200 {
		if err = s.admin.Ping(ctx).Err(); err == nil {
			return s, nil
		}
		<-time.After(25 * time.Millisecond)
	}
	return nil, errors.Join(fmt.Errorf("redis-server does not answer: %w", err), s.stop())
}

// calls returns how many scripts the server has run since its start.
func (s *server) calls(ctx context.Context) (n int64, err error) {
	info, err := s.admin.Info(ctx, "commandstats").Result()
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(info) {
		if rest, ok := strings.CutPrefix(line, "cmdstat_evalsha:calls="); ok {
			_, err = fmt.Sscan(strings.SplitN(rest, ",", 2)[0], &n)
			return n, err
		}
	}
	return 0, nil
}

// delayed starts a proxy that delays each direction by half a round trip.
func delayed(ctx context.Context, target string, trip time.Duration) (addr string, stop func(), err error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := new(net.Dialer).DialContext(ctx, "tcp", target)
			if err != nil {
				_ = client.Close()
				return
			}
			go pass(client, server, trip/2)
			go pass(server, client, trip/2)
		}
	}()
	return l.Addr().String(), func() { _ = l.Close() }, nil
}

// A chunk is bytes that are to be passed on at some time.
type chunk struct {
	at    time.Time
	bytes []byte
}

// pass passes on what comes, each as late, and closes both ends in the end.
func pass(from, to net.Conn, late time.Duration) {
	chunks := make(chan chunk, 1<<16)
	go func() {
		defer close(chunks)
		for {
			b := make([]byte, 64<<10)
			n, err := from.Read(b)
			if err != nil {
				return
			}
			chunks <- chunk{time.Now().Add(late), b[:n]}
		}
	}()
	for c := range chunks {
		<-time.After(time.Until(c.at))
		if _, err := to.Write(c.bytes); err != nil {
			break
		}
	}
	_ = from.Close()
	_ = to.Close()
}
