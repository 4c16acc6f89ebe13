package proctest_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/redistest/proctest"
)

func TestMain(m *testing.M) {
	proctest.Main(m, proctest.Funcs{"echo": echo, "count": count, "fail": fail, "parent": parent})
}

// echo prints its arguments, and then what it reads.
func echo(args []string) error {
	fmt.Fprintln(os.Stdout, strings.Join(args, "|"))
	_, err := io.Copy(os.Stdout, os.Stdin)
	return err
}

// count prints a line for each that it reads, and two more.
func count([]string) error {
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() && in.Text() != "end" {
		fmt.Fprintln(os.Stdout, "counted", in.Text())
	}
	fmt.Fprint(os.Stdout, "one\ntwo")
	return in.Err()
}

func fail([]string) error { return errors.New("as it should") }

// parent starts a program that outlives it, unless the kernel prevents it.
func parent([]string) error {
	cmd := exec.Command("sleep", "600")
	recorder := &recorder{}
	fmt.Fprintln(os.Stdout, proctest.StartCommand(recorder, cmd).Pid())
	select {}
}

// A recorder is a test that notes its end instead of ending.
type recorder struct {
	testing.TB

	fatal string
	logs  []string
	later []func()
}

func (r *recorder) Helper()          {}
func (r *recorder) Failed() bool     { return r.fatal != "" }
func (r *recorder) Cleanup(f func()) { r.later = append(r.later, f) }

func (r *recorder) Logf(format string, args ...any) {
	r.logs = append(r.logs, fmt.Sprintf(format, args...))
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.fatal = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// run runs a test to its end, its clean-up included.
func (r *recorder) run(test func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		test()
	}()
	<-done
	for _, f := range slices.Backward(r.later) {
		f()
	}
}

func TestArgumentsAndLines(t *testing.T) {
	p := proctest.Start(t, "echo", "a", "b c", "-test.v")
	if got := p.Line(); got != "a|b c|-test.v" {
		t.Errorf("got %q", got)
	}
	p.Send("hello")
	if got := p.Line(); got != "hello" {
		t.Errorf("got %q", got)
	}
}

func TestWaitReturnsTheRest(t *testing.T) {
	p := proctest.Start(t, "count")
	p.Send("7")
	p.Send("end")
	if got := p.Line(); got != "counted 7" {
		t.Errorf("got %q", got)
	}
	if got := p.Wait(); !slices.Equal(got, []string{"one", "two"}) {
		t.Errorf("got %q", got)
	}
}

func TestSeveralAtOnce(t *testing.T) {
	var all []*proctest.Process
	pids := make(map[int]bool)
	for i := range 5 {
		p := proctest.Start(t, "echo", fmt.Sprint(i))
		all = append(all, p)
		pids[p.Pid()] = true
	}
	for i, p := range all {
		if got := p.Line(); got != fmt.Sprint(i) {
			t.Errorf("process %d printed %q", i, got)
		}
	}
	if len(pids) != 5 {
		t.Errorf("%d processes", len(pids))
	}
}

func TestFailureOfAProcessFailsTheTest(t *testing.T) {
	for name, end := range map[string]func(*proctest.Process){
		"Wait": func(p *proctest.Process) { p.Wait() },
		"Line": func(p *proctest.Process) { p.Line() },
	} {
		var r recorder
		r.run(func() { end(proctest.Start(&r, "fail")) })
		if !strings.Contains(r.fatal, "exit status 1") {
			t.Errorf("%s: ended with %q", name, r.fatal)
		}
		if logs := strings.Join(r.logs, "\n"); !strings.Contains(logs, "fail: as it should") {
			t.Errorf("%s: logged %q", name, logs)
		}
	}
}

func TestUnknownFunction(t *testing.T) {
	var r recorder
	r.run(func() { proctest.Start(&r, "nothing").Wait() })
	if logs := strings.Join(r.logs, "\n"); !strings.Contains(logs, `there is no function "nothing"`) {
		t.Errorf("logged %q", logs)
	}
}

func TestUnknownProgram(t *testing.T) {
	var r recorder
	r.run(func() { proctest.StartCommand(&r, exec.Command("/does/not/exist")) })
	if !strings.Contains(r.fatal, "/does/not/exist") {
		t.Errorf("ended with %q", r.fatal)
	}
}

func TestKill(t *testing.T) {
	p := proctest.Start(t, "echo")
	p.Line()
	p.Kill()
	select {
	case <-p.Exited():
	default:
		t.Error("it lives")
	}
	p.Kill() // does no harm
}

func TestPause(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no signal for it")
	}
	p := proctest.Start(t, "count")
	p.Pause()
	p.Send("1")
	p.Pause() // does no harm
	p.Resume()
	if got := p.Line(); got != "counted 1" {
		t.Errorf("got %q", got)
	}
	p.Pause()
	p.Kill() // works on a paused one too
}

func TestProcessesDieWithTheTest(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux sees to that")
	}
	p := proctest.Start(t, "parent")
	grandchild := p.Line()
	p.Kill()
	deadline := time.Now().Add(10 * time.Second)
	for running(grandchild) {
		if time.Now().After(deadline) {
			t.Fatalf("process %s has outlived the one that started it", grandchild)
		}
		<-time.After(time.Millisecond)
	}
}

// running reports whether a process exists and is no zombie.
func running(pid string) bool {
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	return err == nil && !strings.Contains(string(stat), ") Z ")
}
