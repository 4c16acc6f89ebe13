package proctest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// patience bounds every wait. Nothing waits longer than it must; a busy machine
// needs the room.
const patience = 30 * time.Second

// A Command is a process that lives no longer than its test. It is killed when the test ends and,
// on Linux, when the process of the test dies.
type Command struct {
	t       testing.TB
	process *os.Process
	exited  chan struct{}
	err     error // of Wait, once exited is closed
}

// StartCommand starts cmd.
func StartCommand(t testing.TB, cmd *exec.Cmd) *Command {
	t.Helper()
	// What a grandchild keeps open must not hold up the test.
	cmd.WaitDelay = time.Second
	if err := start(cmd); err != nil {
		t.Fatalf("proctest: %v", err)
	}
	c := &Command{t: t, process: cmd.Process, exited: make(chan struct{})}
	go func() {
		c.err = cmd.Wait()
		close(c.exited)
	}()
	t.Cleanup(c.Kill)
	return c
}

// Pid returns the number of the process.
func (c *Command) Pid() int { return c.process.Pid }

// Exited returns a channel that is closed when the process has ended.
func (c *Command) Exited() <-chan struct{} { return c.exited }

// Kill ends the process with SIGKILL, paused or not, and returns when it is gone.
func (c *Command) Kill() {
	_ = c.process.Kill() // fails if the process has ended
	<-c.exited
}

// Interrupt asks the process to end, as Ctrl-C does. Windows cannot.
func (c *Command) Interrupt() {
	c.t.Helper()
	if err := c.process.Signal(os.Interrupt); err != nil {
		c.t.Fatalf("proctest: interrupting: %v", err)
	}
}

// Pause stops the process with SIGSTOP. It keeps its sockets, and the kernel still
// accepts connections for it. When Pause returns it does nothing any more.
func (c *Command) Pause() {
	c.t.Helper()
	if err := pause(c.process); err != nil {
		c.t.Fatalf("proctest: pausing: %v", err)
	}
	deadline := time.Now().Add(patience)
	for !c.stopped() {
		if time.Now().After(deadline) {
			c.t.Fatal("proctest: the process does not stop")
		}
		<-time.After(100 * time.Microsecond)
	}
}

// Resume lets a paused process continue.
func (c *Command) Resume() {
	c.t.Helper()
	if err := resume(c.process); err != nil {
		c.t.Fatalf("proctest: resuming: %v", err)
	}
}

// stopped reports whether a process that was sent SIGSTOP has stopped, all its
// threads. Where there is no /proc, the signal is trusted.
func (c *Command) stopped() bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", c.Pid()))
	for _, name := range threads {
		stat, err := os.ReadFile(name)
		if err != nil {
			continue // the thread has ended
		}
		// The state follows the name, which is in parentheses and may hold some.
		state := bytes.TrimSpace(stat[bytes.LastIndexByte(stat, ')')+1:])
		if !bytes.ContainsAny(state[:1], "TtZX") {
			return false
		}
	}
	return true
}
