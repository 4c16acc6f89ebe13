package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

// asCommand makes the test's binary the command.
const asCommand = "HEADGATE_TEST_COMMAND"

// The first SIGTERM or Ctrl-C ends a command that reads what does not come.
func TestSignalsEndWhatReads(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("there are no such signals on Windows")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	document := file(t, "good.yaml", good)
	for _, args := range []string{
		"check -", "diff - " + document, "diff " + document + " -",
		"push - -redis redis://127.0.0.1:1", "peek api k -redis redis://127.0.0.1:1 -secret-file /dev/stdin",
		"reset api k -redis redis://127.0.0.1:1 -secret-file /dev/stdin", "ping -redis redis://127.0.0.1:1 -secret-file /dev/stdin",
	} {
		for _, signal := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
			t.Run(args+" "+signal.String(), func(t *testing.T) {
				t.Parallel()
				command := exec.CommandContext(t.Context(), self, strings.Fields(args)...)
				command.Env = append(os.Environ(), asCommand+"=1")
				var stderr bytes.Buffer
				command.Stderr = &stderr
				stdin, err := command.StdinPipe()
				if err != nil {
					t.Fatal(err)
				}
				if err := command.Start(); err != nil {
					t.Fatal(err)
				}
				// More than a pipe holds: it reads when this is written.
				if _, err := stdin.Write(bytes.Repeat([]byte("# a comment\n"), 1<<15)); err != nil {
					t.Fatal(err)
				}
				if err := command.Process.Signal(signal); err != nil {
					t.Fatal(err)
				}
				var exit *exec.ExitError
				if err := command.Wait(); !errors.As(err, &exit) || exit.ExitCode() != exitTrouble || !strings.Contains(stderr.String(), "headgate") {
					t.Errorf("%v: %s", err, stderr.String())
				}
			})
		}
	}
}
