package main

import (
	"bufio"
	"crypto/sha256"
	"encoding/base64"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/internal/norace"
	"github.com/headgate/headgate/internal/redistest"
	"github.com/headgate/headgate/keyfuncs"
)

// direct is the connection to a handler in this goroutine, so that the minute of a run is one
// of synctest, which does not pass.
func direct(handler http.Handler) (transport http.RoundTripper, url string, end func(), err error) {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		return w.Result(), nil
	}), "http://campus.example/", func() {}, nil
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// The numbers that README.md has for 500 students.
func TestCampus(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testCampus)
}

func testCampus(t *testing.T) {
	const students = 500
	served, err := simulate(t.Context(), direct, memstore.New(memstore.Config{}), students)
	if err != nil {
		t.Fatal(err)
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
		`500 students .* 6 requests each; .* 6000\.`,
		`a student, at least +\d +6\n`,
		`the abuser +\d+ +30\n`,
		`with its own cookie +\d+ +10\n`,
	} {
		if !regexp.MustCompile(line).MatchString(out.String()) {
			t.Errorf("no %s in\n%s", line, &out)
		}
	}

	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []string{
		fmt.Sprintf(`the median student, of %d \| about 3 \| %d`, asks, with.median()),
		fmt.Sprintf(`the student served least \| 0 or 1 \| %d`, with.min()),
		fmt.Sprintf(`the abuser, of %d,000 \| about 3,350 \| %d`, served.abuserAsked/1000, with.abuserServed()),
	} {
		if !regexp.MustCompile(`(?m)^\| ` + row + ` \|$`).Match(readme) {
			t.Errorf("README.md has no row %s", row)
		}
	}
	if m := without.median(); m < 2 || m > 4 {
		t.Errorf("without session keys, the median student was served %d", m)
	}
	if n := without.abuserServed(); n < 3100 || n > 3600 {
		t.Errorf("without session keys, the abuser was served %d", n)
	}
}

// Over two days, an abuser takes every cookie that it can get, and now and then uses all
// that are valid. The students are served nevertheless. The price is that the abuser takes
// the cookies of new browsers.
func TestCollectedCookies(t *testing.T) {
	norace.Test(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const students, abuserMost = 500, cookieLimit*studentLimit + studentLimit + newcomerLimit
		c, err := newCampus(memstore.New(memstore.Config{}), keyfuncs.RemoteAddr(), students)
		if err != nil {
			t.Fatal(err)
		}
		ask := func(cookie *http.Cookie) (ok bool, given *http.Cookie) {
			r := httptest.NewRequest("GET", "/api/hello", nil)
			if cookie != nil {
				r.AddCookie(cookie)
			}
			w := httptest.NewRecorder()
			c.withCookies.ServeHTTP(w, r)
			if set := w.Result().Cookies(); len(set) > 0 {
				given = set[0]
			}
			return w.Code == http.StatusOK, given
		}

		type collected struct {
			*http.Cookie
			until time.Time
		}
		var cookies []collected
		begin, most := time.Now(), 0
		for _, at := range []time.Duration{
			9 * time.Minute, 16 * time.Minute, 24 * time.Minute, 34 * time.Minute, time.Hour, 6 * time.Hour,
			23 * time.Hour, 24*time.Hour + 5*time.Minute, 25 * time.Hour, 36 * time.Hour, 49 * time.Hour,
		} {
			abuser := 0
			for time.Since(begin) < at {
				time.Sleep(time.Minute)
				abuser = 0
				for {
					ok, given := ask(nil)
					if !ok {
						break
					}
					abuser++
					cookies = append(cookies, collected{given, time.Now().Add(cookieLife)})
				}
			}

			cookies = slices.DeleteFunc(cookies, func(k collected) bool { return !time.Now().Before(k.until) })
			for _, k := range append(cookies, collected{Cookie: c.signedIn()}) {
				for range studentLimit + 1 {
					if ok, _ := ask(k.Cookie); ok {
						abuser++
					}
				}
			}
			most = max(most, abuser)
			served := 0
			for range students {
				student := c.signedIn()
				for range asks {
					if ok, _ := ask(student); ok {
						served++
					}
				}
			}
			t.Logf("after %v: students %d of %d, the abuser %d", at, served, students*asks, abuser)
			if served != students*asks || abuser > abuserMost {
				t.Errorf("after %v, students were served %d of %d requests, the abuser %d", at, served, students*asks, abuser)
			}
			if ok, _ := ask(nil); ok {
				t.Errorf("after %v, the abuser left room for a new browser", at)
			}
		}
		if most < cookieLimit*studentLimit {
			t.Errorf("the abuser used at most %d requests in a minute: it did not collect", most)
		}
	})
}

// Each trick by itself gets what newcomers have, and no more: rotating is worth as much as
// dropping.
func TestTricks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testTricks)
}

func testTricks(t *testing.T) {
	for _, tr := range tricks {
		r, err := crowd(t.Context(), direct, memstore.New(memstore.Config{}), 10, []trick{tr},
			func(c *campus) http.Handler { return c.withCookies })
		if err != nil {
			t.Fatal(err)
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

// A new student is served with the newcomers and keeps the cookie. One who has signed in has
// a limit at once. The page shows the limits.
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
	if got := response.Header.Get("RateLimit-Policy"); got != `"newcomers";q=20;w=60, "cookies";q=100;w=86400, "address";q=1350;w=60` {
		t.Error(got)
	}
	if again, _ := get(t, server.URL+"/api/hello", cookies[0]); len(again.Cookies()) != 0 {
		t.Error("a second cookie for a student who has one")
	}
	young, _ := get(t, server.URL+"/api/hello", cookies[0])
	if got := young.Header.Get("RateLimit-Policy"); got != `"newcomers";q=20;w=60, "address";q=1350;w=60` {
		t.Error(got)
	}
	known, _ := get(t, server.URL+"/api/hello", c.signedIn())
	if got := known.Header.Get("RateLimit-Policy"); got != `"student";q=10;w=60, "address";q=1350;w=60` {
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
	for _, text := range []string{"<script", "style=", "src=", "url(", "@import"} {
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
	_, style, _ := strings.Cut(body, "<style>")
	style, _, _ = strings.Cut(style, "</style>")
	sum := sha256.Sum256([]byte(style))
	if v := w.Header().Get("Content-Security-Policy"); !strings.Contains(v, "style-src 'sha256-"+base64.StdEncoding.EncodeToString(sum[:])+"'") {
		t.Errorf("the page's style is not permitted: %s", v)
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
