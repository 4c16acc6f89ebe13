package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/headgate/headgate/internal/redistest"
)

// A told is what a program reads of an answer.
type told struct {
	status    int
	Allowed   bool
	Source    string
	Limit     int64
	Remaining int64
	Detail    string
}

// ask asks a service, and reports whether there was an answer.
func (s *service) ask(path, body string) (got told, ok bool) {
	r, err := http.Post(s.url(path), "application/json", strings.NewReader(body))
	if err != nil {
		return got, false
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil || json.Unmarshal(text, &got) != nil {
		return got, false
	}
	got.status = r.StatusCode
	return got, true
}

// must is ask, of a service that answers.
func (s *service) must(t testing.TB, path, body string) told {
	t.Helper()
	got, ok := s.ask(path, body)
	if !ok {
		t.Fatal("the service does not answer")
	}
	return got
}

func (s *service) signal(t testing.TB, signal os.Signal) {
	t.Helper()
	p, err := os.FindProcess(s.Pid())
	must(t, err)
	must(t, p.Signal(signal))
}

// status returns that of the admin door.
func (s *service) status(t testing.TB, path string) int {
	t.Helper()
	r, err := http.Get("http://" + s.admin + path)
	must(t, err)
	r.Body.Close()
	return r.StatusCode
}

const daily = "limits: {api: {plans: {all: fixed-window 100/day}}}\n"

const one = `{"charges": [{"limit": "api", "key": "anna"}]}`

// Without Redis, who decides is as the flag says; nothing else is different, and what was counted counts
// again when it is back.
func TestRedisAway(t *testing.T) {
	redis := redistest.Start(t, "appendonly yes", "appendfsync always")
	document := write(t, daily)
	services := make(map[string]*service)
	for _, failure := range []string{"local", "open", "closed"} {
		services[failure] = start(t, "-config", document, "-http", "127.0.0.1:0", "-redis", "redis://"+redis.Addr(), "-redis-prefix", failure, "-failure", failure)
	}
	want := func(what string, is func(failure string, got told) bool) {
		t.Helper()
		for failure, s := range services {
			wait(t, fmt.Sprintf("%s, %s", failure, what), func() bool { return is(failure, s.must(t, "/v1/check", one)) })
			if s.status(t, "/healthz") != 200 || s.status(t, "/readyz") != 200 {
				t.Errorf("%s, %s: not healthy, or not ready", failure, what)
			}
		}
	}
	for failure, s := range services {
		wait(t, failure+": charged by Redis", func() bool {
			got := s.must(t, "/v1/charge", `{"charges": [{"limit": "api", "key": "anna", "units": 40}]}`)
			return got.Source == "store"
		})
	}
	left := make(map[string]int64)
	for failure, s := range services {
		left[failure] = s.must(t, "/v1/check", one).Remaining
	}
	for _, away := range []struct {
		what       string
		begin, end func()
	}{{"Redis is silent", redis.Pause, redis.Resume}, {"Redis is killed", redis.Kill, redis.Restart}} {
		away.begin()
		want(away.what, func(failure string, got told) bool {
			switch failure {
			case "closed":
				return got.status == 503 && got.Detail != ""
			default:
				return got.status == 200 && got.Source == failure
			}
		})
		away.end()
		want("after "+away.what, func(failure string, got told) bool {
			return got.status == 200 && got.Source == "store" && got.Remaining == left[failure]
		})
	}
}

// A service that is killed under load is replaced on its socket, and the limit is exact over all: what was
// charged and not answered is lost, and nothing more.
func TestKilled(t *testing.T) {
	redis := redistest.Start(t)
	document := write(t, "limits: {api: {plans: {all: fixed-window 2000/day}}}\n")
	address := "127.0.0.1:" + freePort(t)
	args := []string{"-config", document, "-redis", "redis://" + redis.Addr(), "-timeout", "10s", "-failure", "closed", "-http"}
	first, second := start(t, append(args, address)...), start(t, append(args, "127.0.0.1:0")...)
	var admitted, unknown atomic.Int64
	var wg sync.WaitGroup
	killed := make(chan struct{})
	for i := range 8 {
		s := []*service{first, second}[i%2]
		wg.Go(func() {
			for n := 0; ; n++ {
				switch got, ok := s.ask("/v1/charge", one); {
				case !ok:
					unknown.Add(1)
					return
				case got.status == 429:
					return
				case got.status == 200:
					if admitted.Add(1) == 200 {
						close(killed)
					}
				default:
					t.Errorf("%+v", got)
				}
			}
		})
	}
	<-killed
	first.Kill()
	wg.Wait()
	first = start(t, append(args, address)...)
	for first.must(t, "/v1/charge", one).status == 200 {
		admitted.Add(1)
	}
	if n := admitted.Load(); n > 2000 || n < 2000-unknown.Load() {
		t.Errorf("%d of 2000 were admitted, and %d have no answer", n, unknown.Load())
	}
}

// A document that is replaced under load, by rename and SIGHUP, costs no request.
func TestHangup(t *testing.T) {
	name := write(t, daily)
	s := start(t, "-config", name, "-http", "127.0.0.1:0")
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if got, ok := s.ask("/v1/check", one); !ok || got.status != 200 {
					t.Errorf("%v %+v", ok, got)
				}
			}
		})
	}
	for limit := 101; limit < 111; limit++ {
		text := strings.Replace(daily, "100", fmt.Sprint(limit), 1)
		must(t, os.WriteFile(name+".new", []byte(text), 0o600))
		must(t, os.Rename(name+".new", name))
		s.signal(t, syscall.SIGHUP)
		wait(t, "the document applies", func() bool { return s.must(t, "/v1/check", one).Limit == int64(limit) })
	}
	close(stop)
	wg.Wait()
	must(t, os.WriteFile(name, []byte("limits: {}"), 0o600))
	s.signal(t, syscall.SIGHUP)
	wait(t, "the fault is in the metrics", func() bool {
		r, err := http.Get("http://" + s.admin + "/metrics")
		must(t, err)
		defer r.Body.Close()
		text, _ := io.ReadAll(r.Body)
		return bytes.Contains(text, []byte(`headgated_reload_failing{what="document"} 1`))
	})
	if got := s.must(t, "/v1/check", one); got.Limit != 110 {
		t.Errorf("%+v", got)
	}
}

// SIGTERM lets requests that have begun end, and the command ends with 0.
func TestTerminated(t *testing.T) {
	s := start(t, "-config", write(t, daily), "-http", "127.0.0.1:0")
	conn, err := net.Dial("tcp", s.http)
	must(t, err)
	defer conn.Close()
	fmt.Fprintf(conn, "POST /v1/charge HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n", len(one))
	_, err = io.ReadFull(conn, make([]byte, 25)) // the handler reads the body
	must(t, err)
	s.signal(t, syscall.SIGTERM)
	wait(t, "no connection is taken", func() bool {
		c, err := net.Dial("tcp", s.http)
		if err == nil {
			c.Close()
		}
		return err != nil
	})
	_, err = io.WriteString(conn, one)
	must(t, err)
	if text, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(text), "HTTP/1.1 200 OK") {
		t.Errorf("%v %q", err, text)
	}
	if lines := s.Wait(); len(lines) > 0 {
		t.Errorf("more on standard output: %q", lines)
	}
}

// Hostile connections end, and the process lives. It says nothing of keys and secrets.
func TestHostileConnections(t *testing.T) {
	const secret = "geheim-geheim-geheim-geheim-geheim"
	file := filepath.Join(t.TempDir(), "secret")
	must(t, os.WriteFile(file, []byte(secret), 0o600))
	s := start(t, "-config", write(t, daily), "-http", "127.0.0.1:0", "-secret-file", file, "-redis", "redis://:geheim@127.0.0.1:1", "-failure", "local")
	for _, text := range []string{
		"\x00\x01\x02\r\n\r\n", "POST /v1/charge HTTP/9.9\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "GET /" + strings.Repeat("a", 200<<10) + " HTTP/1.1\r\n\r\n",
		"POST /v1/charge HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: -1\r\n\r\n",
		"POST /v1/charge HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\nffffffffffffffff\r\n",
		"GET /v1/auth HTTP/1.1\r\nHost: a\r\nConnection: close\r\n" + strings.Repeat("X-Forwarded-For: geheim\r\n", 1000) + "\r\n",
	} {
		conn, err := net.Dial("tcp", s.http)
		must(t, err)
		_, _ = io.WriteString(conn, text)
		_ = conn.(*net.TCPConn).CloseWrite()
		_, _ = io.Copy(io.Discard, conn)
		conn.Close()
	}
	for range 50 { // slow clients: they send a part, and then nothing
		conn, err := net.Dial("tcp", s.http)
		must(t, err)
		defer conn.Close()
		_, err = io.WriteString(conn, "POST /v1/charge HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{")
		must(t, err)
	}
	if got := s.must(t, "/v1/charge", strings.Replace(one, "anna", "geheim", 1)); got.status != 200 || got.Source != "local" {
		t.Errorf("%+v", got)
	}
	for _, path := range []string{"/metrics", "/debug/headgate/", "/debug/headgate/json"} {
		r, err := http.Get("http://" + s.admin + path)
		must(t, err)
		text, _ := io.ReadAll(r.Body)
		r.Body.Close()
		if r.StatusCode != 200 || bytes.Contains(text, []byte("geheim")) {
			t.Errorf("%s: %d %s", path, r.StatusCode, text)
		}
	}
}
