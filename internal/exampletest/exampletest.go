// Package exampletest runs the servers under examples/ for their tests, each in its own
// process. A package that uses it needs a TestMain:
//
//	func TestMain(m *testing.M) { exampletest.Main(m, main) }
package exampletest

import (
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"github.com/headgate/headgate/internal/redistest/proctest"
)

// Main is the body of TestMain. It runs the tests or, in a process started by [Start], the
// program.
func Main(m *testing.M, program func()) {
	proctest.Main(m, proctest.Funcs{"program": func([]string) error {
		program()
		return nil
	}})
}

// A Server is the running program.
type Server struct {
	URL string // that it printed, without the trailing slash

	t       testing.TB
	process *proctest.Process
}

// Start starts the program on a free port.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	p := proctest.Start(t, "program", append([]string{"-addr", "127.0.0.1:0"}, args...)...)
	for {
		_, rest, ok := strings.Cut(p.Line(), "http://")
		if ok {
			host, _, _ := strings.Cut(rest, "/")
			return &Server{URL: "http://" + host, t: t, process: p}
		}
	}
}

// Do sends a request with fields, alternating names and values, and returns the response
// and its body.
func (s *Server) Do(method, path string, fields ...string) (*http.Response, string) {
	s.t.Helper()
	request, err := http.NewRequestWithContext(s.t.Context(), method, s.URL+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	for i := 0; i < len(fields); i += 2 {
		request.Header.Set(fields[i], fields[i+1])
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		s.t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return response, string(body)
}

// Admits sends n+1 requests. It fails the test unless the first n are admitted and the last is
// refused, with the right RateLimit and Retry-After fields.
func (s *Server) Admits(n int, method, path string, fields ...string) {
	s.t.Helper()
	for i := range n {
		r, body := s.Do(method, path, fields...)
		if r.StatusCode != http.StatusOK || r.Header.Get("RateLimit") == "" || r.Header.Get("Retry-After") != "" {
			s.t.Errorf("%s %s, request %d of %d: %s %v %s", method, path, i+1, n, r.Status, r.Header, body)
		}
	}
	r, body := s.Do(method, path, fields...)
	if r.StatusCode != http.StatusTooManyRequests || r.Header.Get("Retry-After") == "" ||
		!strings.Contains(r.Header.Get("RateLimit"), ";r=0;t=") {
		s.t.Errorf("%s %s, request %d: %s %v %s", method, path, n+1, r.Status, r.Header, body)
	}
}

// Stop interrupts the program like Ctrl-C, and fails the test unless it exits with status 0.
func (s *Server) Stop() {
	s.t.Helper()
	if runtime.GOOS == "windows" { // no process can send os.Interrupt there
		return
	}
	s.process.Interrupt()
	s.process.Wait()
}
