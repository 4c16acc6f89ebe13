package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/headgate/headgate/test/benchmarks/systems"
)

// limit is not reached by a benchmark of some minutes.
var limit = systems.Limit{N: 1_000_000_000, Per: 1000 * time.Second}

// A contestant is one server that is measured.
type contestant struct {
	name      string
	framework string
	system    string // empty: without a limit
	server    *server
	found     []figures
}

// contestants are the frameworks without a limit, each before its systems.
func contestants() []*contestant {
	var all []*contestant
	for _, framework := range []string{"Gin", "Echo"} {
		all = append(all, &contestant{name: framework, framework: framework})
		for _, s := range systems.All {
			if s.Framework == framework {
				all = append(all, &contestant{name: framework + ", " + s.Name, framework: framework, system: s.Name})
			}
		}
	}
	return all
}

func (c *contestant) handler() (http.Handler, error) {
	for _, s := range systems.All {
		if s.Framework != c.framework || c.system != "" && s.Name != c.system {
			continue
		}
		hello := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello\n") })
		bare, guarded, err := s.Handlers(hello, limit)
		if c.system == "" {
			return bare, err
		}
		return guarded, err
	}
	return nil, fmt.Errorf("there is no %s", c.name)
}

// variable names the contestant to be in the environment of a child.
const variable = "OVERHEAD_SERVER"

// serveIfChild serves the contestant that the parent chose, until the parent ends.
func serveIfChild() bool {
	name := os.Getenv(variable)
	if name == "" {
		return false
	}
	for _, c := range contestants() {
		if c.name == name {
			if err := c.serve(); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
		}
	}
	return true
}

func (c *contestant) serve() error {
	handler, err := c.handler()
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr())
	ended := make(chan error, 2)
	go func() { ended <- http.Serve(listener, handler) }()
	go func() {
		_, err := io.Copy(io.Discard, os.Stdin)
		ended <- err
	}()
	return <-ended
}

// A server is a process with a contestant.
type server struct {
	url   string
	cmd   *exec.Cmd
	stdin io.Closer
}

func (c *contestant) start(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := pinned(ctx, "0", self)
	cmd.Env = append(os.Environ(), variable+"="+c.name, "GOMAXPROCS=1")
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	c.server = &server{cmd: cmd, stdin: stdin}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	c.server.url = "http://" + strings.TrimSpace(line) + "/"
	return nil
}

func (c *contestant) stop() error {
	if c.server == nil {
		return nil
	}
	return errors.Join(c.server.stdin.Close(), c.server.cmd.Wait())
}

// tick is the unit in which Linux reports processor time to programs.
const tick = 10 * time.Millisecond

// cpu is the processor time that the server has used, or 0 where there is no /proc.
func (s *server) cpu() time.Duration {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	// The fields follow the name, which is in parentheses and may hold spaces.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * tick
}

// pinned is a command that runs on some processors, if they are there and can be chosen.
func pinned(ctx context.Context, processors, name string, args ...string) *exec.Cmd {
	if taskset, err := exec.LookPath("taskset"); err == nil && runtime.NumCPU() > 1 {
		name, args = taskset, append([]string{"-c", processors, name}, args...)
	}
	return exec.CommandContext(ctx, name, args...)
}
