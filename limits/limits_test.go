package limits_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/limits"
)

const document = `
limits:
  api:
    default: free
    plans:
      free: sliding-log 2/minute
      gold: sliding-log 4/minute
    overrides:
      - {key: ben, plan: gold}
      - {prefix: "bad:", policies: blocked}
  login: {plans: {free: sliding-log 1/minute}}
slots:
  ws: {default: free, plans: {free: 1, gold: 2}}
...
`

// A page is a source that tests change.
type page struct {
	mu   sync.Mutex
	text []byte
	err  error
}

func (p *page) set(text string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.text, p.err = []byte(text), err
}

func (p *page) load(context.Context) ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text, p.err
}

func admitted(t *testing.T, l *core.Limiter, key string) (n int) {
	t.Helper()
	for range 6 {
		d, err := l.Allow(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		if d.Allowed {
			n++
		}
	}
	return n
}

func TestLimitersAndSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &page{text: []byte(document)}
		book, err := limits.Open(t.Context(), new(core.MemoryStore), p.load, limits.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer book.Close()
		api, err := book.Limiter("api")
		if err != nil {
			t.Fatal(err)
		}
		if again, _ := book.Limiter("api"); again != api {
			t.Error("two limiters of one name")
		}
		for _, test := range []struct {
			plan, key string
			want      int
		}{{"", "anna", 2}, {"gold", "anna", 2}, {"unknown", "carl", 2}, {"", "ben", 4}, {"gold", "bad:1", 0}} {
			if got := admitted(t, api.Plan(test.plan), test.key); got != test.want {
				t.Errorf("%s under %q: %d, want %d", test.key, test.plan, got, test.want)
			}
		}
		if err := api.Reset(t.Context(), "anna"); err != nil {
			t.Fatal(err)
		}
		if got := admitted(t, api.Plan("gold"), "anna"); got != 4 {
			t.Errorf("after a reset: %d", got)
		}
		login, err := book.Limiter("login")
		if err != nil {
			t.Fatal(err)
		}
		both := func() bool {
			d, err := core.AllowAll(t.Context(), core.Charge{Limiter: api, Key: "dora"}, core.Charge{Limiter: login, Key: "dora"})
			if err != nil {
				t.Fatal(err)
			}
			return d.Allowed
		}
		if !both() || both() {
			t.Error("a login more than the document admits, or none")
		}
		ws, err := book.Slots("ws")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ws.Acquire(t.Context(), "anna"); err != nil {
			t.Error(err)
		}
		if _, err := ws.Acquire(t.Context(), "anna"); !errors.Is(err, core.ErrFull) {
			t.Error(err)
		}
		if _, err := ws.Plan("gold").Acquire(t.Context(), "anna"); err != nil {
			t.Error(err)
		}
		p.set(strings.ReplaceAll(document, "2/minute", "3/minute"), nil)
		time.Sleep(1100 * time.Millisecond)
		if got := admitted(t, api, "eve"); got != 3 {
			t.Errorf("by the new document: %d", got)
		}
		if _, err := book.Limiter("nothing"); err == nil {
			t.Error("a limiter that the document has not")
		}
		for what, f := range map[string]func(){"plan": func() { api.WithPlan("x", core.Blocked()) }, "slots": func() { ws.WithPlan("x", 1) }} {
			func() {
				defer func() {
					if recover() == nil {
						t.Errorf("a program adds a %s to a document", what)
					}
				}()
				f()
			}()
		}
	})
}

// OnChange is told of documents that are applied or refused, and of a source that is away or back, in order.
func TestOnChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, told := &page{text: []byte(document)}, make(chan string, 20)
		book, err := limits.Open(t.Context(), new(core.MemoryStore), p.load, limits.Config{OnChange: func(s limits.State) {
			told <- fmt.Sprintf("%d changes, %d warnings, %v", len(s.Changes), len(s.Warnings), s.Err)
		}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := book.Limiter("login"); err != nil {
			t.Fatal(err)
		}
		wants := func(want string) {
			t.Helper()
			time.Sleep(1500 * time.Millisecond)
			if got := <-told; !strings.Contains(got, want) || len(told) > 0 {
				t.Errorf("%q and %d more, want %q", got, len(told), want)
			}
		}
		wants("<nil>")
		version := book.State().Version
		p.set(strings.ReplaceAll(document, "2/minute", "3/minute"), nil)
		wants("1 changes, 0 warnings, <nil>")
		if book.State().Version == version || book.Reload(t.Context()) != nil {
			t.Error("the version is as before")
		}
		p.set("limits: {api: {plans: {free: sliding-log 2/minute}}}\n...\n", nil)
		wants("login")
		p.set("limits: {api: {plans: {free: nonsense}}}\n...\n", nil)
		wants("line 1")
		p.set("", errors.New("no disk"))
		wants("no disk")
		p.set(strings.ReplaceAll(document, "key: ben", "key: 203.0.113.0/28"), nil)
		wants("1 warnings, <nil>")
		book.Close()
		wants("closed")
	})
}

// OnChange gets one call at a time, the last with ErrClosed, however Reload and Close meet.
func TestClose(t *testing.T) {
	p, versions := new(page), 0
	change := func() {
		versions++
		p.set(fmt.Sprintf("limits: {api: {plans: {free: fixed-window %d/minute}}}\n...\n", versions), nil)
	}
	change()
	var busy sync.Mutex
	var told []error
	b, err := limits.Open(t.Context(), new(core.MemoryStore), p.load, limits.Config{OnChange: func(s limits.State) {
		if !busy.TryLock() {
			t.Error("two calls at once")
			return
		}
		defer busy.Unlock()
		time.Sleep(time.Millisecond)
		told = append(told, s.Err)
	}})
	if err != nil {
		t.Fatal(err)
	}
	var reloads sync.WaitGroup
	begun := make(chan struct{})
	reloads.Go(func() {
		for i := range 30 {
			if change(); i == 10 {
				close(begun)
			}
			_ = b.Reload(t.Context()) // also of a closed book
		}
	})
	<-begun
	b.Close()
	b.Close()
	reloads.Wait()
	for i, err := range told {
		if last := i == len(told)-1; errors.Is(err, core.ErrClosed) != last {
			t.Errorf("%d of %d: %v", i, len(told), err)
		}
	}
	before := b.State().Version
	change()
	if err := b.Reload(t.Context()); !errors.Is(err, core.ErrClosed) || b.State().Version != before {
		t.Errorf("Reload of a closed book: %v", err)
	}
	if text := fmt.Sprintf("%#v", b); text != "limits.Book" {
		t.Error(text)
	}
}

func TestInitial(t *testing.T) {
	away := func(context.Context) ([]byte, error) { return nil, errors.New("away") }
	if _, err := limits.Open(t.Context(), new(core.MemoryStore), away, limits.Config{}); err == nil {
		t.Error("no document, no error")
	}
	book, err := limits.Open(t.Context(), new(core.MemoryStore), away, limits.Config{Initial: []byte(document)})
	if err != nil {
		t.Fatal(err)
	}
	defer book.Close()
	if l, err := book.Limiter("api"); err != nil || admitted(t, l, "anna") != 2 || book.State().Err == nil {
		t.Error(err, book.State())
	}
	if text := fmt.Sprintf("%+v %#v", limits.Config{Initial: []byte(document)}, limits.Config{Initial: []byte(document)}); strings.Contains(text, "ben") {
		t.Error(text)
	}
}

func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "limits.yaml")
	if err := os.WriteFile(path, []byte(document), 0o600); err != nil {
		t.Fatal(err)
	}
	book, err := limits.Open(t.Context(), new(core.MemoryStore), limits.File(path), limits.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer book.Close()
	next := path + ".new"
	if err := os.WriteFile(next, []byte(strings.ReplaceAll(document, "2/minute", "3/minute")), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, path); err != nil {
		t.Fatal(err)
	}
	if err := book.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if l, err := book.Limiter("api"); err != nil || admitted(t, l, "anna") != 3 {
		t.Error(err)
	}
}
