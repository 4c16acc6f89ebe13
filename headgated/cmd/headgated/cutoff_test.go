package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"
)

// A machine that is cut off, here a network namespace whose link goes down, keeps a slot for half a minute at most. Its client
// knows before that the slot is not its own.
func TestHoldOfMachineThatIsCutOff(t *testing.T) {
	if testing.Short() || runtime.GOOS != "linux" {
		t.Skip("it waits for half a minute, and needs network namespaces")
	}
	t.Parallel()
	const name, outside, inside = "headgate-holds", "hgholds0", "hgholds1"
	tool := program(t, "ip", "/usr/sbin/ip", "/sbin/ip")
	ip := func(words ...string) error {
		out, err := exec.Command(tool, words...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("ip %s: %w: %s", strings.Join(words, " "), err, out)
		}
		return nil
	}
	if os.Geteuid() != 0 {
		t.Skip("only root may make a network of its own")
	}
	_ = ip("netns", "delete", name) // of a test that was killed
	must(t, ip("netns", "add", name))
	t.Cleanup(func() { _ = ip("netns", "delete", name) })
	for _, words := range []string{
		"link add " + outside + " type veth peer name " + inside + " netns " + name, "address add 198.51.100.1/30 dev " + outside, "link set " + outside + " up",
		"-netns " + name + " address add 198.51.100.2/30 dev " + inside, "-netns " + name + " link set " + inside + " up",
	} {
		must(t, ip(strings.Fields(words)...))
	}
	client, document := holders(t), write(t, "slots: {export: {plans: {all: 1}}}\n")
	served := start(t, "-config", document, "-http", "198.51.100.1:0", "-insecure")
	away := client(served.http, "60", tool, "netns", "exec", name, interpreter(t, "python3"), "p.py")
	if text := away.line(); text != "held" {
		t.Fatal(text)
	}
	must(t, ip("-netns", name, "link", "set", inside, "down"))
	begin := time.Now()
	stopped := make(chan time.Duration, 1)
	go func() {
		if away.line() == "lost" {
			stopped <- time.Since(begin)
		}
		close(stopped)
	}()
	free(t, "a machine that is cut off", served.http)
	select {
	case told, ok := <-stopped:
		if !ok {
			t.Error("the client has ended without a word")
		}
		t.Logf("its client has stopped after %v", told.Round(time.Millisecond))
	default:
		t.Error("the slot is another's, and the client does not know that")
	}
}
