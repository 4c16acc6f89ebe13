package main

import (
	"bufio"
	"encoding/xml"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/internal/redistest"
	"github.com/headgate/headgate/keyfuncs"
)

// What is promised holds for runs that a minute contains, in which no request is
// forgotten.
func inTime(t *testing.T, r result) bool {
	t.Helper()
	if r.took > 50*time.Second {
		t.Logf("this machine took %v: that proves nothing", r.took)
		return false
	}
	return true
}

func TestCampus(t *testing.T) {
	t.Parallel()
	const students = 40
	served, err := simulate(t.Context(), memstore.New(memstore.Config{}), students)
	if err != nil {
		t.Fatal(err)
	}
	if !inTime(t, served.without) || !inTime(t, served.with) {
		return
	}

	with := served.with
	if len(with.students) != students || with.min() != asks || with.median() != asks || with.max() != asks {
		t.Errorf("with session keys, students were served %v", with.students)
	}
	if with.abuser[own] != studentLimit || with.abuserServed() != studentLimit+newcomerLimit {
		t.Errorf("with session keys, the abuser was served %v", with.abuser)
	}

	without := served.without
	total := without.abuserServed()
	for _, n := range without.students {
		total += n
	}
	if int64(total) != addressLimit(students) {
		t.Errorf("without session keys, %d were served, not %d", total, addressLimit(students))
	}
	// The abuser gets about two thirds of what is served, as it sends two thirds.
	if without.abuserServed() < total/2 || without.min() == asks {
		t.Errorf("without session keys, the abuser was served %d of %d, students %v", without.abuserServed(), total, without.students)
	}

	var out strings.Builder
	report(&out, served)
	for _, line := range []string{
		`40 students .* 6 requests each; .* 480\.`,
		`a student, at least +\d +6\n`,
		`the abuser +\d+ +30\n`,
		`with its own cookie +\d+ +10\n`,
	} {
		if !regexp.MustCompile(line).MatchString(out.String()) {
			t.Errorf("no %s in\n%s", line, &out)
		}
	}
}

// Each trick by itself gets what newcomers have, and no more: rotating is worth as much as
// dropping.
func TestTricks(t *testing.T) {
	t.Parallel()
	for _, tr := range tricks {
		r, err := crowd(t.Context(), memstore.New(memstore.Config{}), 10, []trick{tr},
			func(c *campus) http.Handler { return c.withCookies })
		if err != nil {
			t.Fatal(err)
		}
		if !inTime(t, r) {
			return
		}
		want := newcomerLimit
		if tr == own {
			want = studentLimit
		}
		if r.abuserServed() != want || r.min() != asks {
			t.Errorf("trick %d: the abuser was served %d, not %d; students %v", tr, r.abuserServed(), want, r.students)
		}
	}
}

// A new student is served with the newcomers, keeps the cookie, and is told where the
// limits are.
func TestRoutes(t *testing.T) {
	t.Parallel()
	c, err := newCampus(memstore.New(memstore.Config{}), keyfuncs.RemoteAddr(), 40)
	if err != nil {
		t.Fatal(err)
	}
	r := result{students: []int{0, 1, 6}, abuser: map[trick]int{own: 9}}
	server := httptest.NewServer(routes(c, results{abuserAsked: 36, without: r, with: r}))
	t.Cleanup(server.Close)

	response, body := get(t, server.URL+"/api/hello", nil)
	cookies := response.Cookies()
	if response.StatusCode != 200 || body != "hello\n" || len(cookies) != 1 {
		t.Fatalf("%s, %q, cookies %v", response.Status, body, cookies)
	}
	if got := response.Header.Get("RateLimit-Policy"); got != `"newcomers";q=20;w=60, "address";q=350;w=60` {
		t.Error(got)
	}
	if again, _ := get(t, server.URL+"/api/hello", cookies[0]); len(again.Cookies()) != 0 {
		t.Error("a second cookie for a student who has one")
	}
	old, _ := get(t, server.URL+"/api/hello", c.cookie.New(time.Now().Add(-probation)))
	if got := old.Header.Get("RateLimit-Policy"); got != `"student";q=10;w=60, "address";q=350;w=60` {
		t.Error(got)
	}
	for path, want := range map[string]int{"/": 200, "/api": 404, "/api/hello/": 404} {
		if response, _ := get(t, server.URL+path, nil); response.StatusCode != want {
			t.Errorf("%s: %s", path, response.Status)
		}
	}
}

func TestPage(t *testing.T) {
	t.Parallel()
	r := result{students: []int{0, 3, 6, 6}, abuser: map[trick]int{own: 6, drop: 6}}
	w := httptest.NewRecorder()
	svg := picture(results{abuserAsked: 48, without: r, with: r})
	page(svg).ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	body := w.Body.String()
	for _, text := range []string{
		"Served per student: 0 to 6 of 6, median 6. Served to the abuser: 12 of 48.",
		`d="M0 120L0 120H125L125 60H250L250 0H375L375 0H500L500 120Z"`,
		`y="90" width="85" height="30"`,
	} {
		if strings.Count(body, text) != 2 {
			t.Errorf("not twice: %s in\n%s", text, body)
		}
	}
	for _, text := range []string{"<script", "style", "src=", "url("} {
		if strings.Contains(body, text) {
			t.Errorf("the page has %s", text)
		}
	}
	if err := xml.Unmarshal(svg, new(struct{})); err != nil {
		t.Error(err)
	}
	if !strings.Contains(body, "<svg") || !strings.Contains(body, "curl -i http://example.com/api/hello<") {
		t.Error(body)
	}
	if v := w.Header().Get("Content-Type"); v != "text/html; charset=utf-8" {
		t.Error(v)
	}
}

func TestProgram(t *testing.T) {
	t.Parallel()
	program := build(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { taken.Close() })
	for _, c := range []struct {
		name   string
		args   []string
		status int
		says   string
	}{
		{"no students", []string{"-students", "0"}, 2, "it must be 1 to 10000"},
		{"too many", []string{"-students", "10001"}, 2, "it must be 1 to 10000"},
		{"an argument", []string{"8080"}, 2, `"8080"`},
		{"no URL of Redis", []string{"-redis", "localhost"}, 2, "-redis"},
		{"address in use", []string{"-addr", taken.Addr().String()}, 1, "bind"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var out, errs strings.Builder
			cmd := exec.CommandContext(t.Context(), program, append([]string{"-addr", "127.0.0.1:0"}, c.args...)...)
			cmd.Stdout, cmd.Stderr = &out, &errs
			err := cmd.Run()
			if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != c.status {
				t.Errorf("%v, not exit status %d", err, c.status)
			}
			text, ok := strings.CutSuffix(errs.String(), "\n")
			if !ok || strings.Contains(text, "\n") || !strings.HasPrefix(text, "campus: ") || !strings.Contains(text, c.says) {
				t.Errorf("stderr %q, not one line with %q", errs.String(), c.says)
			}
			if out.Len() > 0 {
				t.Errorf("stdout %q", out.String())
			}
		})
	}
	t.Run("once", func(t *testing.T) {
		t.Parallel()
		file := filepath.Join(t.TempDir(), "served.svg")
		out, err := exec.CommandContext(t.Context(), program, "-addr", "127.0.0.1:0", "-students", "20", "-once", "-plot", file).CombinedOutput()
		if err != nil || !strings.HasPrefix(string(out), "20 students behind one address") {
			t.Errorf("%v, %s", err, out)
		}
		if svg, err := os.ReadFile(file); err != nil || xml.Unmarshal(svg, new(struct{})) != nil {
			t.Errorf("%v, %s", err, svg)
		}
	})
	t.Run("stops", func(t *testing.T) {
		t.Parallel()
		if runtime.GOOS != "windows" { // no process can send os.Interrupt there
			stops(t, program)
		}
	})
}

// stops starts the program, reads the page where it says that it is, interrupts the
// program and sees that it ends well.
func stops(t *testing.T, program string) {
	cmd := exec.CommandContext(t.Context(), program, "-addr", "127.0.0.1:0", "-students", "5")
	var errs strings.Builder
	cmd.Stderr = &errs
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	out := bufio.NewReader(stdout)
	var url string
	for url == "" {
		line, err := out.ReadString('\n')
		if err != nil {
			t.Fatalf("%v; stderr %q", err, &errs)
		}
		if _, rest, ok := strings.Cut(line, "Listening on "); ok {
			url, _, _ = strings.Cut(rest, ",")
		}
	}
	if r, body := get(t, url, nil); r.StatusCode != 200 || !strings.Contains(body, "<svg") {
		t.Errorf("%s: %s", url, r.Status)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(out); err != nil || len(rest) > 0 {
		t.Errorf("%q, %v", rest, err)
	}
	if err := cmd.Wait(); err != nil || errs.Len() > 0 {
		t.Errorf("%v, stderr %q", err, &errs)
	}
}

// Runs with one Redis do not disturb each other.
func TestRedis(t *testing.T) {
	url := "redis://" + redistest.Start(t).Addr() + "/0"
	program := build(t)
	for range 2 {
		out, err := exec.CommandContext(t.Context(), program, "-addr", "127.0.0.1:0", "-students", "20", "-once", "-redis", url).CombinedOutput()
		if err != nil || !regexp.MustCompile(`a student, at least +\d +6\n`).Match(out) || !regexp.MustCompile(`the abuser +\d+ +30\n`).Match(out) {
			t.Errorf("%v, %s", err, out)
		}
	}
}

func build(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "campus")
	if runtime.GOOS == "windows" {
		program += ".exe"
	}
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return program
}

func get(t *testing.T, url string, cookie *http.Cookie) (*http.Response, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), "GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if cookie != nil {
		request.AddCookie(cookie)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response, string(body)
}
