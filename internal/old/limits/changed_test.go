package limits_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/internal/bubble"
	"github.com/headgate/headgate/internal/old/limits"
)

// use uses a book as programs do.
func use(t *testing.T, b *limits.Book) {
	if b == nil { // it is not there yet
		return
	}
	_ = limit(t, b, "api").For("", "k")
	_ = slots(t, b, "ws").For("", "k")
	if s := b.State(); s.Version == "" || b.Document() == nil {
		t.Errorf("%+v", s)
	}
}

// Accept and Changed may use the book, and Changed may also make it ask its source.
func TestCallbacksUseTheBook(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		source := newBoard(ws(free(`"sliding-log 1/minute"`)))
		var book atomic.Pointer[limits.Book]
		var accepted, changed int
		b := open(t, source, limits.Config{
			Accept: func(limits.Diff) error {
				accepted++
				use(t, book.Load())
				return nil
			},
			Changed: func(limits.Event) {
				changed++
				if b := book.Load(); b != nil {
					use(t, b)
					if err := b.Reload(t.Context()); err != nil {
						t.Error(err)
					}
				}
			},
		})
		book.Store(b)
		source.write(ws(free(`"sliding-log 2/minute"`)))
		time.Sleep(time.Minute)
		synctest.Wait()
		source.write(ws(free(`"sliding-log 3/minute"`)))
		reload(t, b)
		if accepted != 2 || changed != 3 || text(limit(t, b, "api").For("", "k")) != "api: sliding-log 3/minute" {
			t.Errorf("%d were accepted, %d told", accepted, changed)
		}
	})
}

// A limit that a program names while Accept takes a document without it.
func TestNamedWhileAccepting(t *testing.T) {
	both := `{"limits": {"api": {"plans": {"a": "sliding-log 1/minute"}}, "web": {"plans": {"a": "sliding-log 1/minute"}}}}`
	source := newBoard(both)
	var b *limits.Book
	b = open(t, source, limits.Config{Accept: func(limits.Diff) error {
		limit(t, b, "web")
		return nil
	}, Every: time.Hour})
	api := limit(t, b, "api")
	source.write(free(`"sliding-log 2/minute"`))
	if err := b.Reload(t.Context()); err == nil || err.Error() != `limits: there is no "web" among the limits, which the program uses` {
		t.Error(err)
	}
	source.write(both[:len(both)-1] + " }")
	reload(t, b)
	source.write(fmt.Sprintf(`{"limits": {"new": {"plans": {"a": "unlimited"}}, %s`, both[len(`{"limits": {`):]))
	reload(t, b)
	if got := text(limit(t, b, "web").For("", "k")) + text(api.For("", "k")); got != "web: sliding-log 1/minuteapi: sliding-log 1/minute" {
		t.Error(got)
	}
}

// A Changed that lasts delays no look-up and no other change, and is called in the order of the
// editions.
func TestSlowChanged(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		source := newBoard(free(`"sliding-log 1/minute"`))
		goOn := make(chan struct{})
		var told []string
		b := open(t, source, limits.Config{Changed: func(e limits.Event) {
			if told = append(told, e.State.Version); len(told) == 2 {
				<-goOn
			}
		}})
		api := limit(t, b, "api")
		want := []string{b.State().Version}
		for n := 2; n < 10; n++ {
			source.write(free(fmt.Sprintf(`"sliding-log %d/minute"`, n)))
			if n == 2 {
				time.Sleep(2 * time.Second) // the book finds it, and is held
			} else {
				reload(t, b)
			}
			want = append(want, b.State().Version)
			if got := api.For("", "k").Policies()[0].Limit(); got != int64(n) {
				t.Errorf("the limit is %d, not %d", got, n)
			}
		}
		synctest.Wait()
		if len(told) != 2 {
			t.Errorf("%d were told", len(told))
		}
		close(goOn)
		synctest.Wait()
		if !slices.Equal(told, want) {
			t.Errorf("%q were told, not %q", told, want)
		}
	})
}

// What Changed does to its goroutine by a panic does not keep the next from being told.
func TestChangedPanics(t *testing.T) {
	source := newBoard(free(`"sliding-log 1/minute"`))
	var told int
	b := open(t, source, limits.Config{Every: time.Hour, Changed: func(limits.Event) {
		if told++; told == 2 {
			panic("on purpose")
		}
	}})
	again := func() {
		defer func() { _ = recover() }()
		_ = b.Reload(context.Background())
	}
	for n := 2; n < 5; n++ {
		source.write(free(fmt.Sprintf(`"sliding-log %d/minute"`, n)))
		again()
	}
	if told != 4 {
		t.Errorf("%d were told", told)
	}
}
