package redisdoc_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/redistest"
	"github.com/headgate/headgate/limits"
	"github.com/headgate/headgate/limits/redisdoc"
)

const key = "{shop}:limits"

func text(limit string) []byte {
	return []byte("limits: {api: {plans: {free: sliding-log " + limit + "/minute}}}\n...\n")
}

// A push is in force on all servers when it returns, and is refused if it has faults or a server could not use it.
func TestPush(t *testing.T) {
	ctx := t.Context()
	client := redis.NewClient(&redis.Options{Addr: redistest.Start(t).Addr(), ContextTimeoutEnabled: true})
	defer client.Close()
	if err := redisdoc.Push(ctx, client, key, text("5")); err != nil {
		t.Fatal(err)
	}
	var books []*limits.Book
	for range 2 {
		book, err := redisdoc.Open(ctx, new(core.MemoryStore), client, key, limits.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer book.Close()
		if _, err := book.Limiter("api"); err != nil {
			t.Fatal(err)
		}
		books = append(books, book)
	}
	pushing, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if err := redisdoc.Push(pushing, client, key, text("7")); err != nil {
		t.Fatal(err)
	}
	for i, book := range books {
		l, err := book.Limiter("api")
		if err != nil {
			t.Fatal(err)
		}
		if d, err := l.Allow(ctx, "anna"); err != nil || d.Limit != 7 {
			t.Errorf("server %d: %v, %v", i, d, err)
		}
	}
	for want, document := range map[string]string{"line 1": "limits: {api: {plans: {free: nonsense}}}\n...\n", "would refuse": "limits: {other: {plans: {free: sliding-log 1/minute}}}\n...\n"} {
		if err := redisdoc.Push(pushing, client, key, []byte(document)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	if got := books[0].State(); got.Err != nil {
		t.Error(got)
	}
}

func TestNoDocument(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: redistest.Start(t).Addr(), ContextTimeoutEnabled: true})
	defer client.Close()
	if _, err := redisdoc.Open(t.Context(), new(core.MemoryStore), client, key, limits.Config{}); err == nil {
		t.Error("no error without a document")
	}
	book, err := redisdoc.Open(t.Context(), new(core.MemoryStore), client, key, limits.Config{Initial: text("3")})
	if err != nil {
		t.Fatal(err)
	}
	book.Close()
}
