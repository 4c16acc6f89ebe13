package redistest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/redistest/proctest"
)

// A Server is one redis-server: alone, a node of a [Cluster], or of a [Sentinel]
// deployment.
type Server struct {
	t       testing.TB
	binary  string
	dir     string
	port    int
	args    []string // of the program, after the name of its configuration
	env     []string // besides the variables of this process
	process *proctest.Command
}

// Start starts a server that answers when Start returns. It saves nothing to disk.
// The lines are added to its redis.conf, and prevail:
//
//	redistest.Start(t, "maxmemory 2mb", "maxmemory-policy noeviction")
func Start(t testing.TB, lines ...string) *Server {
	t.Helper()
	return start(t, func(*Server) {}, lines...)
}

// start starts a server that was prepared.
func start(t testing.TB, prepare func(*Server), lines ...string) *Server {
	t.Helper()
	s := newServer(t, slices.Concat(inMemory, lines))
	prepare(s)
	s.launch()
	s.await()
	return s
}

// inMemory are the lines of the configuration of servers that hold data.
var inMemory = []string{
	`save ""`,
	"appendonly no",
	"repl-diskless-sync-delay 0", // replicas are in step at once
}

// newServer prepares a server: its port and its directory.
func newServer(t testing.TB, lines []string, args ...string) *Server {
	t.Helper()
	s := &Server{t: t, binary: binary(t), dir: t.TempDir(), port: Port(t), args: args}
	s.configure("port "+strconv.Itoa(s.port), "bind 127.0.0.1", "protected-mode no")
	s.configure(lines...)
	t.Cleanup(func() {
		if t.Failed() {
			s.logTail()
		}
	})
	return s
}

// configure adds lines to the configuration.
func (s *Server) configure(lines ...string) {
	s.t.Helper()
	s.appendTo("redis.conf", func(f *os.File) error {
		_, err := f.WriteString(strings.Join(lines, "\n") + "\n")
		return err
	})
}

// appendTo opens a file of the server's directory for use.
func (s *Server) appendTo(name string, use func(*os.File) error) {
	s.t.Helper()
	f, err := os.OpenFile(filepath.Join(s.dir, name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		s.t.Fatal(err)
	}
	if err := errors.Join(use(f), f.Close()); err != nil {
		s.t.Fatal(err)
	}
}

// launch starts the process.
func (s *Server) launch() {
	s.t.Helper()
	cmd := exec.CommandContext(context.Background(), s.binary, append([]string{"redis.conf"}, s.args...)...)
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), s.env...)
	s.appendTo("redis.log", func(log *os.File) error {
		cmd.Stdout, cmd.Stderr = log, log
		s.process = proctest.StartCommand(s.t, cmd)
		return nil
	})
}

// await waits until the server answers.
func (s *Server) await() {
	s.t.Helper()
	wait(s.t, "starting redis-server", func() error {
		select {
		case <-s.process.Exited():
			s.t.Fatal("redistest: redis-server ended at once")
		default:
		}
		if _, err := s.Do("PING"); err != nil {
			return err
		}
		// It could be another server that took the port.
		fields, err := s.info("server")
		if err != nil {
			return err
		}
		if got, want := fields["process_id"], strconv.Itoa(s.process.Pid()); got != want {
			return fmt.Errorf("on port %d answers process %s, not %s", s.port, got, want)
		}
		return nil
	})
}

// logTail adds the end of the server's log to the test's.
func (s *Server) logTail() {
	const most = 8 << 10
	text, err := os.ReadFile(filepath.Join(s.dir, "redis.log"))
	if err != nil {
		return
	}
	if len(text) > most {
		text = text[len(text)-most:]
		text = text[bytes.IndexByte(text, '\n')+1:]
	}
	s.t.Logf("log of redis-server %s:\n%s", s.Addr(), text)
}

// Addr returns the server's address, host and port.
func (s *Server) Addr() string { return address(s.port) }

// Kill ends the server with SIGKILL. Connections to it are refused from then on.
func (s *Server) Kill() { s.process.Kill() }

// Running reports whether the server has been started and not killed. A paused one
// is running.
func (s *Server) Running() bool {
	select {
	case <-s.process.Exited():
		return false
	default:
		return true
	}
}

// Restart kills the server if it runs, and starts it on the same port with the same
// configuration. It has the data that it had saved; by default that is none.
func (s *Server) Restart() {
	s.t.Helper()
	s.Kill()
	s.launch()
	s.await()
}

// Pause stops the server with SIGSTOP: clients connect and send, nothing answers.
func (s *Server) Pause() {
	s.t.Helper()
	s.process.Pause()
}

// Resume lets a paused server continue. It executes everything that was sent meanwhile,
// also by clients that have disconnected.
func (s *Server) Resume() {
	s.t.Helper()
	s.process.Resume()
}

// Do sends one command, on a connection of its own, and returns the reply: a string,
// an int64, nil, or a []any of these. An error is the network's or the server's.
func (s *Server) Do(args ...string) (any, error) { return do(s.Addr(), args...) }

// must is Do for commands that cannot fail while the server runs.
func (s *Server) must(args ...string) any {
	s.t.Helper()
	reply, err := s.Do(args...)
	if err != nil {
		s.t.Fatalf("redistest: %s: %v", strings.Join(args[:min(len(args), 3)], " "), err)
	}
	return reply
}

// Flush removes all keys. The scripts stay: SCRIPT FLUSH removes them.
func (s *Server) Flush() {
	s.t.Helper()
	s.must("FLUSHALL")
}

// Info returns the fields of a section of INFO.
func (s *Server) Info(section string) map[string]string {
	s.t.Helper()
	fields, err := s.info(section)
	if err != nil {
		s.t.Fatalf("redistest: INFO %s: %v", section, err)
	}
	return fields
}

func (s *Server) info(section string) (map[string]string, error) {
	reply, err := s.Do("INFO", section)
	if err != nil {
		return nil, err
	}
	text, _ := reply.(string)
	fields := make(map[string]string)
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimRight(line, "\r\n"), ":"); ok {
			fields[name] = value
		}
	}
	return fields, nil
}

// CPU returns the processor time that the server has used since it was started. The
// difference of two calls is what something in between cost the server.
func (s *Server) CPU() time.Duration {
	s.t.Helper()
	fields := s.Info("cpu")
	user, err1 := time.ParseDuration(fields["used_cpu_user"] + "s")
	system, err2 := time.ParseDuration(fields["used_cpu_sys"] + "s")
	if err := errors.Join(err1, err2); err != nil {
		s.t.Fatalf("redistest: INFO cpu: %v", err)
	}
	return user + system
}

// CommandStats are the server's counts of one command.
type CommandStats struct {
	Calls    int64         // executed, those that failed included
	Rejected int64         // refused before execution
	Failed   int64         // failed while executing
	Time     time.Duration // all calls together
}

// CommandStats returns the counts of all commands since the start of the server or
// [Server.ResetStats]. Names are in lower case, and subcommands like "config|get". Commands called
// by scripts are counted too.
func (s *Server) CommandStats() map[string]CommandStats {
	s.t.Helper()
	all := make(map[string]CommandStats)
	for name, fields := range s.Info("commandstats") {
		name, ok := strings.CutPrefix(name, "cmdstat_")
		if !ok {
			continue
		}
		var stats CommandStats
		for field := range strings.SplitSeq(fields, ",") {
			key, value, _ := strings.Cut(field, "=")
			n, err := strconv.ParseInt(value, 10, 64)
			switch {
			case key == "usec_per_call":
				continue // not an integer
			case err != nil:
				s.t.Fatalf("redistest: INFO commandstats: %v", err)
			case key == "calls":
				stats.Calls = n
			case key == "rejected_calls":
				stats.Rejected = n
			case key == "failed_calls":
				stats.Failed = n
			case key == "usec":
				stats.Time = time.Duration(n) * time.Microsecond
			}
		}
		all[name] = stats
	}
	return all
}

// Calls returns how often some commands were called, together.
func (s *Server) Calls(names ...string) int64 {
	s.t.Helper()
	var n int64
	stats := s.CommandStats()
	for _, name := range names {
		n += stats[name].Calls
	}
	return n
}

// ResetStats sets the counts of all commands to zero.
func (s *Server) ResetStats() {
	s.t.Helper()
	s.must("CONFIG", "RESETSTAT")
}

// Servers are several servers, in a fixed order.
type Servers []*Server

// Addrs returns the addresses of all.
func (s Servers) Addrs() []string {
	addrs := make([]string, len(s))
	for i, server := range s {
		addrs[i] = server.Addr()
	}
	return addrs
}

// At returns the server with an address, or nil.
func (s Servers) At(addr string) *Server {
	for _, server := range s {
		if server.Addr() == addr {
			return server
		}
	}
	return nil
}

// Running returns those that are running.
func (s Servers) Running() Servers {
	var running Servers
	for _, server := range s {
		if server.Running() {
			running = append(running, server)
		}
	}
	return running
}

// Calls returns how often some commands were called, on all servers together.
func (s Servers) Calls(names ...string) int64 {
	var n int64
	for _, server := range s {
		n += server.Calls(names...)
	}
	return n
}

// ResetStats sets the counts of all servers to zero.
func (s Servers) ResetStats() {
	for _, server := range s {
		server.ResetStats()
	}
}
