package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/redistest"
)

// TestMain makes the test's own binary the servers' program.
func TestMain(m *testing.M) {
	if os.Getenv(serverVariable) != "" {
		main()
		return
	}
	m.Run()
}

func begin(t *testing.T, o options) *fleet {
	t.Helper()
	o.limit, o.servers, o.users, o.ttl, o.prefix = 2, 3, 4, time.Second, "fleet"
	if o.slack == 0 {
		o.slack = time.Minute // no test depends on how busy the machine is
	}
	f, err := newFleet(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.close)
	return f
}

func play(t *testing.T, o options) *fleet {
	t.Helper()
	f := begin(t, o)
	if err := f.play(t.Context()); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	err := f.summary(&out)
	t.Log(out.String())
	if err != nil {
		t.Error(err)
	}
	return f
}

func TestEmbedded(t *testing.T) {
	f := play(t, options{})
	if states := states(f); !slices.Equal(states, []string{"killed", "stopped", "stopped"}) {
		t.Errorf("the servers: %v", states)
	}
}

// TestOwnRedis: of another's Redis the fleet's keys are deleted, and no others.
func TestOwnRedis(t *testing.T) {
	server := redistest.Start(t)
	if _, err := server.Do("SET", "precious", "1"); err != nil {
		t.Fatal(err)
	}
	f := play(t, options{redis: "redis://" + server.Addr() + "/0"})
	if keys, err := server.Do("DBSIZE"); err != nil || keys == int64(1) {
		t.Errorf("the fleet has no keys in this Redis: %v %v", keys, err)
	}
	f.close()
	if keys, err := server.Do("KEYS", "*"); err != nil || fmt.Sprint(keys) != "[precious]" {
		t.Errorf("left in Redis: %v %v", keys, err)
	}
}

// TestCrash: when a server ends by itself, the story ends at once, with the summary.
func TestCrash(t *testing.T) {
	for name, victim := range map[string]int{"the one to be killed": 0, "another": 1} {
		t.Run(name, func(t *testing.T) {
			f := begin(t, options{pause: time.Hour})
			out, err := os.Create(filepath.Join(t.TempDir(), "out"))
			if err != nil {
				t.Fatal(err)
			}
			defer out.Close()
			go func() {
				for !f.allFull() {
					runtime.Gosched()
				}
				_ = f.servers[victim].process.Process.Kill()
			}()
			err = f.show(t.Context(), out)
			server := "server " + f.servers[victim].name + " ended by itself: "
			if err == nil || !strings.Contains(err.Error(), server) || !strings.Contains(err.Error(), "1 of 1 findings") {
				t.Errorf("the error: %v", err)
			}
			text, err := os.ReadFile(out.Name())
			if err != nil || !strings.Contains(string(text), "The story ends: "+server) || !strings.Contains(string(text), "WRONG  no server ends by itself: 1 did\n") {
				t.Errorf("%v\n%s", err, text)
			}
		})
	}
}

// TestInterrupted: there is no summary of a story that Ctrl-C ended.
func TestInterrupted(t *testing.T) {
	f := begin(t, options{pause: time.Hour})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for !f.allFull() {
			runtime.Gosched()
		}
		cancel()
	}()
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if err := f.show(ctx, out); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if text, err := os.ReadFile(out.Name()); err != nil || strings.Contains(string(text), "Expected") {
		t.Errorf("%v\n%s", err, text)
	}
}

// TestTooLate: what takes longer than promised is wrong.
func TestTooLate(t *testing.T) {
	f := &fleet{options: options{ttl: 3 * time.Second, slack: time.Second}}
	if freed, restored := f.freedWithin(), f.restoredWithin(); freed != 5*time.Second || restored != 3*time.Second {
		t.Errorf("%v and %v", freed, restored)
	}

	f = begin(t, options{slack: -time.Hour})
	if err := f.play(t.Context()); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := f.summary(&out); err == nil ||
		!strings.Contains(out.String(), "WRONG  the slots of a killed server are free within") ||
		!strings.Contains(out.String(), "WRONG  an emptied Redis has all counts again within") {
		t.Errorf("%v\n%s", err, out.String())
	}
}

func states(f *fleet) (all []string) {
	for _, s := range f.servers {
		all = append(all, *s.state.Load())
	}
	return all
}

// A board of a fleet that need not run.
func stillLife() *board {
	a, b := &server{name: "A"}, &server{name: "B"}
	a.is("running")
	b.is("killed")
	u := &user{name: "a", open: map[*server]int64{a: 2}, total: 2, counted: 3, refused: 7}
	f := &fleet{options: options{limit: 3}, servers: []*server{a, b}, users: []*user{u}}
	f.board = newBoard(f)
	f.board.say("Something happened.")
	return f.board
}

func TestTerminal(t *testing.T) {
	b := stillLife()
	var out bytes.Buffer
	lines := b.draw(&out, true, 0)
	for _, want := range []string{"A running", "B killed", "●●  ", "3 of 3", "7\n", "Something happened."} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
	if n := strings.Count(out.String(), "\n"); n != lines {
		t.Errorf("%d lines, said to be %d", n, lines)
	}
	out.Reset()
	if b.draw(&out, false, 0) != 1 || b.draw(&out, false, 1) != 1 || strings.Count(out.String(), "\n") != 1 {
		t.Errorf("elsewhere than in a terminal: %q", out.String())
	}
}

// TestAboveTheLimit: it is said who holds more than the limit, and why; otherwise nothing.
func TestAboveTheLimit(t *testing.T) {
	b := stillLife()
	said := func() string { return strings.Join(b.picture().News, "\n") }
	if b.fleet.explainOver(); strings.Contains(said(), "Above the limit") {
		t.Error(said())
	}
	b.fleet.users[0].add(b.fleet.servers[0], 2)
	if b.fleet.explainOver(); !strings.Contains(said(), "Above the limit: a 4 of 3. These were admitted before Redis had the counts again") {
		t.Error(said())
	}
}

func TestPage(t *testing.T) {
	web := httptest.NewServer(stillLife().routes())
	defer web.Close()
	r, err := http.Get(web.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if r.StatusCode != 200 || r.Header.Get("Content-Type") != "text/html; charset=utf-8" {
		t.Errorf("%s %s", r.Status, r.Header.Get("Content-Type"))
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, web.URL+"/pictures", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	if r, err = http.DefaultClient.Do(request); err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	buffer := make([]byte, 4096)
	n, err := r.Body.Read(buffer)
	if err != nil {
		t.Fatal(err)
	}
	var p picture
	if err := json.Unmarshal(bytes.TrimPrefix(buffer[:n], []byte("data: ")), &p); err != nil {
		t.Fatalf("%v: %s", err, buffer[:n])
	}
	if len(p.Servers) != 2 || len(p.Users) != 1 || p.Users[0].Open[0] != 2 || p.Users[0].Counted != 3 || p.Limit != 3 {
		t.Errorf("%+v", p)
	}
}

func TestSummaryTellsWhatIsWrong(t *testing.T) {
	f := new(fleet)
	f.find(true, "good", "%d", 1)
	f.find(false, "bad", "%d", 2)
	var out bytes.Buffer
	if err := f.summary(&out); err == nil || !strings.Contains(out.String(), "WRONG  bad: 2") || !strings.Contains(out.String(), "ok     good: 1") {
		t.Errorf("%v\n%s", err, out.String())
	}
}

// TestNoRedis: a Redis that is not there is an error before any server is started.
func TestNoRedis(t *testing.T) {
	if f, err := newFleet(t.Context(), options{redis: "redis://127.0.0.1:1/0", servers: 2, ttl: time.Second}); f != nil || err == nil || !strings.Contains(err.Error(), "-redis") {
		t.Errorf("%v %v", f, err)
	}
}

// TestNobodyListens: an address that is taken is an error before anything is started.
func TestNobodyListens(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	if err := run(t.Context(), options{addr: taken.Addr().String(), servers: 2}); err == nil {
		t.Error("no error")
	}
}
