package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// A server is a redis-server for this program alone.
type server struct {
	addr  string
	admin *redis.Client // asks for its counts
	pid   int
	stop  func() error
}

// startServer starts redis-server on a free port. It keeps nothing on disk and
// has a database for each system, so that they can use the same keys.
func startServer(ctx context.Context) (*server, error) {
	binary, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, errors.New("redis-server is not installed: apt-get install redis-server, or brew install redis")
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	addr := l.Addr().String()
	_, port, _ := net.SplitHostPort(addr)
	if err := l.Close(); err != nil { // nobody is given the port again so soon
		return nil, err
	}
	dir, err := os.MkdirTemp("", "headgate-redis-")
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, binary, "--port", port, "--bind", "127.0.0.1", "--dir", dir, "--save", "",
		"--appendonly", "no", "--databases", strconv.Itoa(len(systems)))
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	s := &server{addr: addr, pid: cmd.Process.Pid, admin: redis.NewClient(&redis.Options{Addr: addr})}
	s.stop = func() error {
		_ = s.admin.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // says that it was killed
		return os.RemoveAll(dir)
	}
	for range 200 {
		if err = s.admin.Ping(ctx).Err(); err == nil {
			return s, nil
		}
		<-time.After(25 * time.Millisecond)
	}
	return nil, errors.Join(fmt.Errorf("redis-server does not answer: %w", err), s.stop())
}

// keepApart keeps the server on one processor, and this program on another.
func (s *server) keepApart(ctx context.Context) error {
	if runtime.NumCPU() < 2 {
		return errors.New("-apart needs two processors")
	}
	for processor, pid := range []int{os.Getpid(), s.pid} {
		out, err := exec.CommandContext(ctx, "taskset", "--all-tasks", "--cpu-list", "--pid",
			strconv.Itoa(processor), strconv.Itoa(pid)).CombinedOutput()
		if err != nil {
			return fmt.Errorf("-apart: taskset: %w: %s", err, out)
		}
	}
	runtime.GOMAXPROCS(1)
	return nil
}

// A count has statistics of the server since its start.
type count struct {
	cpu      time.Duration
	commands int64 // those of scripts included
}

func (s *server) count(ctx context.Context) (c count, err error) {
	info, err := s.admin.Info(ctx, "cpu", "commandstats").Result()
	if err != nil {
		return c, err
	}
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch {
		case name == "used_cpu_user" || name == "used_cpu_sys":
			d, err := time.ParseDuration(value + "s")
			if err != nil {
				return c, err
			}
			c.cpu += d
		case strings.HasPrefix(name, "cmdstat_") && name != "cmdstat_info":
			calls, _, _ := strings.Cut(strings.TrimPrefix(value, "calls="), ",")
			n, err := strconv.ParseInt(calls, 10, 64)
			if err != nil {
				return c, err
			}
			c.commands += n
		}
	}
	return c, nil
}

func (s *server) version(ctx context.Context) (string, error) {
	info, err := s.admin.InfoMap(ctx, "server").Result()
	return info["Server"]["redis_version"], err
}
