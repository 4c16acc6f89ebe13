// Package e2e tests the pages of the examples in a real browser: headless Chromium.
package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// browser returns a context in which chromedp has a tab.
func browser(t *testing.T) context.Context {
	t.Helper()
	path := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if found, err := exec.LookPath(name); err == nil {
			path = found
			break
		}
	}
	if path == "" && os.Getenv("HEADGATE_REQUIRE") == "1" {
		t.Fatal("there is no Chromium: scripts/install chromium")
	} else if path == "" {
		t.Skip("there is no Chromium: scripts/install chromium")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path),
		chromedp.NoSandbox, // for containers whose user is root; the only page is ours
		chromedp.WSURLReadTimeout(time.Minute),
	)
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(func() {
		_ = chromedp.Cancel(ctx) // waits for the browser to end
		cancel()
	})
	ctx, cancel = context.WithTimeout(ctx, 5*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// start starts an example with these flags, and returns its address.
func start(t *testing.T, example string, flags ...string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), example)
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./examples/"+example)
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	server := exec.Command(program, append([]string{"-addr", "127.0.0.1:0"}, flags...)...)
	stdout, err := server.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	url, _, _ := strings.Cut(launch(t, server, stdout, "Listening on "), ",")
	return url
}

// launch starts a server, and returns what follows some words in its output. The server is told
// to stop when the test ends.
func launch(t *testing.T, server *exec.Cmd, output io.Reader, words string) string {
	t.Helper()
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Process.Signal(os.Interrupt); err != nil {
			t.Error(err)
		}
		if err := server.Wait(); err != nil {
			t.Errorf("%s did not stop cleanly: %v", server.Path, err)
		}
	})
	var said strings.Builder
	for lines := bufio.NewScanner(output); lines.Scan(); {
		fmt.Fprintln(&said, lines.Text())
		if _, rest, found := strings.Cut(lines.Text(), words); found {
			go func() { _, _ = io.Copy(io.Discard, output) }() // or the server blocks when it prints
			return rest
		}
	}
	t.Fatalf("%s ended without listening:\n%s", server.Path, &said)
	return ""
}

// run does things in the browser.
func run(ctx context.Context, t *testing.T, actions ...chromedp.Action) {
	t.Helper()
	if err := chromedp.Run(ctx, actions...); err != nil {
		t.Fatal(err)
	}
}

// until waits until an expression is true in the page.
func until(expression string) chromedp.Action { return chromedp.Poll(expression, nil) }

// shows waits until an element's text contains another.
func shows(id, text string) chromedp.Action {
	return until("document.getElementById('" + id + "').textContent.includes('" + text + "')")
}

func TestRequests(t *testing.T) {
	ctx := browser(t)
	url := start(t, "quickstart", "-limit", "4", "-window", "1m")
	run(ctx, t,
		chromedp.Navigate(url),
		chromedp.Click("#one", chromedp.ByQuery),
		shows("admitted", "1"),
		shows("RateLimit", `"hello";r=3`),
		chromedp.Click("#five", chromedp.ByQuery),
		shows("admitted", "4"),
		shows("refused", "2"),
		shows("status", "429"),
		shows("RateLimit", `"hello";r=0;t=`),
		shows("body", "quota-exceeded"),
		shows("wait", "You can send again in"),
		look(900, 700, false, "light"),
		picture("quickstart"),
	)
}

// TestServerGone: a page whose server does not answer says so, and nothing that it cannot know.
func TestServerGone(t *testing.T) {
	ctx := browser(t)
	url := start(t, "quickstart")
	run(ctx, t,
		chromedp.Navigate(url),
		shows("wait", "You can send now"),
		chromedp.Evaluate(`window.answer = fetch; window.fetch = () => Promise.reject(new Error("on purpose")); 0`, nil),
		shows("wait", "The server does not answer"),
		until(`getComputedStyle(document.getElementById("left")).display === "none"`),
		chromedp.Evaluate(`window.fetch = answer; 0`, nil),
		shows("wait", "You can send now"),
		until(`getComputedStyle(document.getElementById("left")).display !== "none"`),
	)
}

func TestSockets(t *testing.T) {
	ctx := browser(t)
	url := start(t, "quickstart", "-sockets", "2")
	run(ctx, t,
		chromedp.Navigate(url),
		chromedp.Click("#open", chromedp.ByQuery),
		shows("held", "1"),
		chromedp.Click("#open", chromedp.ByQuery),
		shows("held", "2"),
		chromedp.Click("#open", chromedp.ByQuery),
		shows("sockets", "refused (1006)"),
		shows("held", "2"),
		chromedp.Click("#close", chromedp.ByQuery),
		shows("held", "1"),
		// The server may take a moment to see that, so once may not be enough.
		chromedp.Poll(`document.getElementById("held").textContent === "2" || void document.getElementById("open").click()`,
			nil, chromedp.WithPollingInterval(500*time.Millisecond)),
	)
}

func TestChat(t *testing.T) {
	ctx := browser(t)
	url := start(t, "websocket")
	open := chromedp.Click("#open", chromedp.ByQuery)
	run(ctx, t,
		chromedp.Navigate(url),
		open, open, open,
		until(`document.getElementById("sockets").textContent.split("ann: open").length === 4`),
		open,
		shows("sockets", "ann: closed: 1006"),
		chromedp.SetValue("#user", "ben", chromedp.ByQuery),
		open,
		shows("sockets", "ben: open"),
		chromedp.SetValue("#text", "hello", chromedp.ByQuery),
		chromedp.Click("#say button", chromedp.ByQuery),
		shows("said", "hello"),
		chromedp.Click("#flood", chromedp.ByQuery),
		shows("sockets", "ann: closed: 1008"),
	)
}

func TestTokens(t *testing.T) {
	ctx := browser(t)
	url := start(t, "llm")
	run(ctx, t,
		chromedp.Navigate(url),
		shows("estimated-left", "1,000"),
		chromedp.Click("#estimated", chromedp.ByQuery),
		shows("estimated-log", "200: 306 tokens used"),
		chromedp.Click("#reported", chromedp.ByQuery),
		shows("reported-log", "200: 5006 tokens used"),
		shows("reported-wait", "refused for 4 h 0 min"),
		chromedp.Click("#reported", chromedp.ByQuery),
		shows("reported-log", "429: refused for 4 h 0 min"),
		chromedp.Click("#reset", chromedp.ByQuery),
		shows("reported-left", "1,000"),
	)
}

func TestHotKey(t *testing.T) {
	ctx := browser(t)
	url := start(t, "hot", "-demand", "20000", "-limit", "10000")
	run(ctx, t,
		chromedp.Navigate(url),
		shows("limit", "10,000"),
		until(`document.getElementById("servers").rows.length === 5`),
		shows("mode", "Leases are on."),
		chromedp.Click("#toggle", chromedp.ByQuery),
		shows("mode", "Leases are off"),
		chromedp.Click("#toggle", chromedp.ByQuery),
		shows("mode", "Leases are on."),
	)
}
