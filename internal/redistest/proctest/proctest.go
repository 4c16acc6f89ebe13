// Package proctest starts other processes from tests: functions of the test's own
// binary, so that several processes work on one thing, and programs.
//
// A package whose tests need it has a TestMain:
//
//	func TestMain(m *testing.M) {
//		proctest.Main(m, proctest.Funcs{"hammer": hammer})
//	}
//
//	func hammer(args []string) error { ... } // runs in a process of its own
//
// and a test starts any number of them:
//
//	p := proctest.Start(t, "hammer", server.Addr(), "key")
//	p.Line()       // waits for a line that hammer prints
//	p.Send("go")   // a line on its standard input
//	p.Wait()       // what else it printed, once it has returned
package proctest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// variable names the function to run in the environment of a child.
const variable = "HEADGATE_TEST_FUNC"

// Funcs are the functions that run in processes of their own, by name. What one
// prints on standard output goes to the test; an error fails it.
type Funcs map[string]func(args []string) error

// Main is the body of TestMain: it runs the tests or, in a process begun by
// [Start], the function asked for.
func Main(m *testing.M, funcs Funcs) {
	name, child := os.LookupEnv(variable)
	if !child {
		m.Run()
		return
	}
	f, ok := funcs[name]
	if !ok {
		fmt.Fprintf(os.Stderr, "proctest: there is no function %q\n", name)
		os.Exit(2)
	}
	if err := f(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
}

// A Process runs one of the [Funcs]. When its test fails, the test logs what the
// process wrote to standard error.
type Process struct {
	*Command

	name   string
	stdin  io.Writer
	stdout *lines
}

// Start runs a function of the test's own binary in a new process.
func Start(t testing.TB, name string, args ...string) *Process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatalf("proctest: %v", err)
	}
	// Not the test's context: that ends before the test's clean-up does.
	cmd := exec.CommandContext(context.Background(), self, args...)
	cmd.Env = append(os.Environ(), variable+"="+name,
		"GORACE=atexit_sleep_ms=0 "+os.Getenv("GORACE")) // else the race detector delays the end by a second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	p := &Process{name: name, stdout: &lines{changed: make(chan struct{})}}
	cmd.Stdout = p.stdout
	if p.stdin, err = cmd.StdinPipe(); err != nil {
		t.Fatalf("proctest: %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() && p.Command != nil && stderr.Len() > 0 {
			t.Logf("%s, process %d, standard error:\n%s", name, p.Pid(), stderr.String())
		}
	})
	p.Command = StartCommand(t, cmd)
	return p
}

// Send writes a line to the standard input of the process.
func (p *Process) Send(line string) {
	p.t.Helper()
	if _, err := io.WriteString(p.stdin, line+"\n"); err != nil {
		p.t.Fatalf("proctest: %s: %v", p.name, err)
	}
}

// Line waits for the next line that the process prints.
func (p *Process) Line() string {
	p.t.Helper()
	timeout := time.After(patience)
	for ended := false; ; {
		line, changed, ok := p.stdout.next()
		if ok {
			return line
		}
		if ended {
			p.t.Fatalf("proctest: %s ended (%v) instead of printing a line", p.name, p.err)
		}
		select {
		case <-changed:
		case <-p.exited: // all that it printed is there now
			ended = true
		case <-timeout:
			p.t.Fatalf("proctest: %s printed nothing in %v", p.name, patience)
		}
	}
}

// Printed returns the lines that the process has printed so far, and that were not returned before.
func (p *Process) Printed() []string {
	p.stdout.mu.Lock()
	defer p.stdout.mu.Unlock()
	all := p.stdout.whole
	p.stdout.whole = nil
	return all
}

// Wait waits until the process has returned without an error, and returns the lines
// that it printed and [Process.Line] has not returned.
func (p *Process) Wait() []string {
	p.t.Helper()
	select {
	case <-p.exited:
	case <-time.After(patience):
		p.t.Fatalf("proctest: %s does not return", p.name)
	}
	if p.err != nil {
		p.t.Fatalf("proctest: %s: %v", p.name, p.err)
	}
	return p.stdout.rest()
}

// lines takes what a process prints apart. It never blocks the process.
type lines struct {
	mu      sync.Mutex
	begun   []byte // a line without its end
	whole   []string
	changed chan struct{} // closed when more has been printed
}

// Write adds to the lines.
func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.begun = append(l.begun, b...)
	if end := bytes.LastIndexByte(l.begun, '\n'); end >= 0 {
		l.whole = append(l.whole, strings.Split(string(l.begun[:end]), "\n")...)
		l.begun = slices.Clone(l.begun[end+1:])
	}
	close(l.changed)
	l.changed = make(chan struct{})
	return len(b), nil
}

// next takes a line or, if there is none, returns the channel to wait on.
func (l *lines) next() (line string, changed <-chan struct{}, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.whole) == 0 {
		return "", l.changed, false
	}
	line, l.whole = l.whole[0], l.whole[1:]
	return line, nil, true
}

// rest takes all lines, and what stands after the last of them.
func (l *lines) rest() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.whole
	if len(l.begun) > 0 {
		all = append(all, string(l.begun))
	}
	l.whole, l.begun = nil, nil
	return all
}
