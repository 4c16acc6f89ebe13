package limits_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/limits"
)

// A board is a source whose text a test writes.
type board struct {
	mu   sync.Mutex
	text []byte
	err  error
}

func newBoard(text string) *board { return &board{text: []byte(text)} }

func (b *board) Load(context.Context) ([]byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text, b.err
}

func (b *board) write(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.text, b.err = []byte(text), nil
}

func (b *board) away(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.err = err
}

var errAway = errors.New("the source is away")

// free is a document with one limit, api, of these policies.
func free(policies string) string {
	return `{"limits": {"api": {"plans": {"free": ` + policies + `}}}}`
}

func parse(t testing.TB, text string) *limits.Document {
	t.Helper()
	d, err := limits.Parse([]byte(text), nil)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return d
}

func open(t testing.TB, source limits.Source, c limits.Config) *limits.Book {
	t.Helper()
	store := memstore.New(memstore.Config{})
	return openIn(t, store, true, source, c)
}

func openIn(t testing.TB, store core.Store, slots bool, source limits.Source, c limits.Config) *limits.Book {
	t.Helper()
	b, err := limits.Open(t.Context(), store, slots, source, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

func limit(t testing.TB, b *limits.Book, name string) *limits.Limit {
	t.Helper()
	l, err := b.Limit(name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func reload(t testing.TB, b *limits.Book) {
	t.Helper()
	if err := b.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func allow(t testing.TB, l *core.Limiter, key string) core.Decision {
	t.Helper()
	d, err := l.Allow(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// text is the policies of a limiter.
func text(l *core.Limiter) string {
	var all []string
	for _, p := range l.Policies() {
		all = append(all, p.Name()+": "+p.Named("").String())
	}
	return strings.Join(all, ", ")
}

// events are those that a book told of.
type events struct {
	mu   sync.Mutex
	list []limits.Event
}

func (e *events) add(one limits.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = append(e.list, one)
}

func (e *events) all() []limits.Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.list)
}

const document = `{
  "limits": {
    "api": {
      "default": "free",
      "plans": {
        "free": {"minute": "sliding-log 60/minute", "day": "fixed-window 1000/day"},
        "gold": {"minute": "sliding-log 600/minute", "day": "fixed-window 50000/day"}
      },
      "overrides": [
        {"key": "user-42", "plan": "gold", "note": "ticket 815"},
        {"prefix": "acme:", "policies": {"minute": "sliding-log 6000/minute"}}
      ]
    }
  }
}`
