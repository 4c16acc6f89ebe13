package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/redistest"
	"github.com/headgate/headgate/internal/redistest/proctest"
)

func TestMain(m *testing.M) {
	proctest.Main(m, proctest.Funcs{"headgated": func([]string) error {
		main()
		return nil
	}})
}

// A service is the command in a process of its own.
type service struct {
	*proctest.Process

	grpc, http, admin string // addresses
}

// start starts the command, and waits until it is ready.
func start(t testing.TB, args ...string) *service {
	t.Helper()
	p := proctest.Start(t, "headgated", append([]string{"-grpc", "127.0.0.1:0", "-admin", "127.0.0.1:0"}, args...)...)
	s := &service{Process: p}
	if _, err := fmt.Sscanf(p.Line(), "ready grpc=%s http=%s admin=%s", &s.grpc, &s.http, &s.admin); err != nil {
		t.Fatal(err)
	}
	return s
}

// url returns a URL of the HTTP door, which is not a socket.
func (s *service) url(path string) string { return "http://" + s.http + path }

const repository = "../../.."

// block returns a block of a document that is marked so.
func block(t testing.TB, document, mark string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repository, document))
	if err != nil {
		t.Fatal(err)
	}
	_, text2, found := strings.Cut(string(text), "<!-- tested: "+mark+" -->\n```")
	_, text2, _ = strings.Cut(text2, "\n")
	code, _, whole := strings.Cut(text2, "\n```\n")
	if !found || !whole {
		t.Fatalf("%s has no block %q", document, mark)
	}
	return code + "\n"
}

// replaced replaces what must be in a text.
func replaced(t testing.TB, text string, pairs ...string) string {
	t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		if !strings.Contains(text, pairs[i]) {
			t.Fatalf("%q is not in\n%s", pairs[i], text)
		}
		text = strings.ReplaceAll(text, pairs[i], pairs[i+1])
	}
	return text
}

// program returns the path of a program, or skips the test.
func program(t testing.TB, names ...string) string {
	t.Helper()
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			path, err = filepath.Abs(path)
			if err != nil {
				t.Fatal(err)
			}
			return path
		}
	}
	if os.Getenv("HEADGATE_REQUIRE") == "1" {
		t.Fatalf("there is no %s: make tools installs it", names[0])
	}
	t.Skipf("there is no %s: make tools installs it", names[0])
	return ""
}

// onlyOn skips a test of a program that make tools installs on one system only.
func onlyOn(t testing.TB, system string) {
	t.Helper()
	if runtime.GOOS+"/"+runtime.GOARCH != system {
		t.Skipf("make tools installs it on %s only", system)
	}
}

// freePort returns a port for a program that does not choose one.
func freePort(t testing.TB) string {
	t.Helper()
	return strconv.Itoa(redistest.Port(t))
}

// launch starts a proxy in a directory, and waits until it listens.
func launch(t testing.TB, dir, port, name string, args ...string) {
	t.Helper()
	output, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer output.Close()
	cmd := exec.CommandContext(context.Background(), name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, output, output
	cmd.Env = append(os.Environ(), "HOME="+dir, "XDG_DATA_HOME="+dir, "XDG_CONFIG_HOME="+dir)
	process := proctest.StartCommand(t, cmd)
	t.Cleanup(func() {
		if text, err := os.ReadFile(output.Name()); t.Failed() && err == nil {
			t.Logf("log of %s:\n%s", name, text[max(0, len(text)-4<<10):])
		}
	})
	wait(t, name+" listens", func() bool {
		select {
		case <-process.Exited():
			text, _ := os.ReadFile(output.Name())
			t.Fatalf("%s has ended:\n%s", name, text)
		default:
		}
		c, err := net.Dial("tcp", "127.0.0.1:"+port)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}

// wait waits until something is so.
func wait(t testing.TB, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !is(); {
		if time.Now().After(deadline) {
			t.Fatalf("not within 30 s: %s", what)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// application starts a server behind a proxy, and returns its address.
func application(t testing.TB) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/forbidden" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		fmt.Fprint(w, "from the application")
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

// overSocket asks a service on a socket.
func overSocket(t testing.TB, socket, path, body string) string {
	t.Helper()
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	r, err := c.Post("http://headgated"+path, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
