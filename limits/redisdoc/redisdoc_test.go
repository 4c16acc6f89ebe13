package redisdoc_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/docstore"
	"github.com/headgate/headgate/internal/document"
	"github.com/headgate/headgate/internal/redistest"
	"github.com/headgate/headgate/limits"
	"github.com/headgate/headgate/limits/redisdoc"
)

// client returns one of a server of its own.
func client(t *testing.T) redis.UniversalClient {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: redistest.Start(t).Addr(), ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func text(n int) []byte {
	return fmt.Appendf(nil, "limits: {api: {plans: {all: fixed-window %d/day}}}\n...\n", n)
}

func limit(t *testing.T, b *limits.Book) int64 {
	t.Helper()
	l, err := b.Limiter("api")
	if err != nil {
		t.Fatal(err)
	}
	d, err := l.Peek(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	return d.Limit
}

func open(t *testing.T, client redis.UniversalClient, key string, c limits.Config) *limits.Book {
	t.Helper()
	book, err := redisdoc.Open(t.Context(), new(core.MemoryStore), client, key, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(book.Close)
	return book
}

// until waits for what servers see within a second.
func until(t *testing.T, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !done(); <-time.After(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it does not come")
		}
	}
}

// A push returns when all servers have the document, which takes no second.
func TestPushWaits(t *testing.T) {
	c := client(t)
	const key = "push:limits"
	if _, err := redisdoc.Open(t.Context(), new(core.MemoryStore), c, key, limits.Config{}); !errors.Is(err, docstore.ErrNone) {
		t.Error(err)
	}
	if err := redisdoc.Push(t.Context(), c, key, text(1)); err != nil {
		t.Fatal(err)
	}
	var books []*limits.Book
	for range 4 {
		books = append(books, open(t, c, key, limits.Config{}))
	}
	for n := 2; n < 8; n++ {
		begin := time.Now()
		if err := redisdoc.Push(t.Context(), c, key, text(n)); err != nil {
			t.Fatal(err)
		}
		took := time.Since(begin)
		for _, b := range books {
			if got := limit(t, b); got != int64(n) {
				t.Errorf("%d after the push of %d", got, n)
			}
		}
		t.Logf("four servers have the document after %v", took.Round(time.Millisecond))
	}
	books[0].Close() // whoever leaves is not waited for
	s := docstore.Location{Client: c, Key: key}
	if all, err := s.Servers(t.Context()); err != nil || len(all) != 3 {
		t.Error(all, err)
	}
}

// A server that refuses a document says why, to whoever pushes, and keeps the old one.
func TestRefusal(t *testing.T) {
	c := client(t)
	const key = "refusal:limits"
	redisdoc.Push(t.Context(), c, key, text(1))
	one, two := open(t, c, key, limits.Config{}), open(t, c, key, limits.Config{})
	limit(t, one) // uses api; the other does not
	other := []byte("limits: {other: {plans: {all: blocked}}}\n...")
	err := redisdoc.Push(t.Context(), c, key, other)
	if err == nil || strings.Count(err.Error(), "refuses the document") != 1 || !strings.Contains(err.Error(), `uses a limit "api"`) {
		t.Error(err)
	}
	if limit(t, one) != 1 || one.State().Err == nil || two.State().Version != document.Version(other) {
		t.Error(one.State(), two.State())
	}
	if err := redisdoc.Push(t.Context(), c, key, []byte("limits: {api: 1}\n...")); err == nil || !strings.Contains(err.Error(), "line 1, column 15") {
		t.Error(err)
	}
	if err := redisdoc.Push(t.Context(), c, key, text(2)); err != nil {
		t.Error(err)
	}
}

// Of many who write at once in the place of one version, one wins; and nothing is lost of the chain of those who won.
func TestTwoWriters(t *testing.T) {
	c := client(t)
	ctx, s := t.Context(), docstore.Location{Client: c, Key: "writers:limits"}
	if err := s.Write(ctx, text(0), ""); err != nil {
		t.Fatal(err)
	}
	if err := s.Write(ctx, text(1), ""); !errors.Is(err, docstore.ErrConflict) {
		t.Error(err)
	}
	var won, lost, chain atomic.Int64
	var mu sync.Mutex
	replaced := map[string]int{} // how often each version was replaced
	var done sync.WaitGroup
	for w := range 4 {
		done.Go(func() {
			s := docstore.Location{Client: c, Key: s.Key}
			for i := range 200 {
				_, was, err := s.Read(ctx)
				if err != nil {
					t.Error(err)
					return
				}
				switch err := s.Write(ctx, text(1000*w+i+10), was); {
				case err == nil:
					won.Add(1)
					mu.Lock()
					replaced[was]++
					mu.Unlock()
				case errors.Is(err, docstore.ErrConflict):
					lost.Add(1)
				default:
					t.Error(err)
				}
			}
		})
	}
	done.Wait()
	for v, n := range replaced {
		chain.Add(1)
		if n != 1 {
			t.Errorf("version %s was replaced %d times", v, n)
		}
	}
	if won.Load() != chain.Load() || won.Load()+lost.Load() != 800 || lost.Load() == 0 {
		t.Error(won.Load(), lost.Load(), chain.Load())
	}
	t.Logf("%d won, %d lost", won.Load(), lost.Load())
}

// What somebody wrote by hand is no document, whatever it is, and no push replaces it.
func TestForeign(t *testing.T) {
	ctx, c := t.Context(), client(t)
	for i, put := range []func(key string) error{
		func(key string) error { return c.Set(ctx, key, text(1), 0).Err() },
		func(key string) error {
			return c.Set(ctx, key, "headgate-limits 1 0123456789ab\n"+string(text(1)), 0).Err()
		},
		func(key string) error {
			return c.Set(ctx, key, "headgate-limits 2 0123456789ab\n"+string(text(1)), 0).Err()
		},
		func(key string) error { return c.HSet(ctx, key, "version", 1).Err() },
	} {
		key := fmt.Sprint("foreign", i)
		if err := put(key); err != nil {
			t.Fatal(err)
		}
		_, err := redisdoc.Open(ctx, new(core.MemoryStore), c, key, limits.Config{})
		pushed := redisdoc.Push(ctx, c, key, text(2))
		if err == nil || pushed == nil && i != 1 { // whose first line is sound, so a push mends it
			t.Error(i, err, pushed)
		}
		t.Log(err)
	}
}

// While Redis is away, the limits stay, and the state says so; afterwards all is as it was.
func TestAway(t *testing.T) {
	c := client(t)
	const key = "away:limits"
	redisdoc.Push(t.Context(), c, key, text(1))
	book := open(t, c, key, limits.Config{})
	limit(t, book)
	old, _ := c.Get(t.Context(), key).Result()
	c.Del(t.Context(), key)
	until(t, func() bool { return errors.Is(book.State().Err, docstore.ErrNone) })
	if limit(t, book) != 1 {
		t.Error(book.State())
	}
	c.Set(t.Context(), key, old, 0)
	until(t, func() bool { return book.State().Err == nil })
	if limit(t, book) != 1 {
		t.Error(book.State())
	}
}

// On a Cluster, a document is read from the replica that takes over from its master.
func TestClusterFailover(t *testing.T) {
	all := redistest.StartCluster(t, 3, 1)
	connect := func() redis.UniversalClient {
		c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: all.Nodes().Running().Addrs(), ContextTimeoutEnabled: true})
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	const key = "failover:limits"
	c := connect()
	if err := redisdoc.Push(t.Context(), c, key, text(1)); err != nil {
		t.Fatal(err)
	}
	book, master := open(t, c, key, limits.Config{}), all.Owner(key)
	if n, err := master.Do("WAIT", "1", "4000"); n != int64(1) || err != nil {
		t.Fatal(n, err)
	}
	master.Kill()
	until(t, func() bool { return book.State().Err != nil })
	all.WaitReady()
	s := docstore.Location{Client: connect(), Key: key}
	if err := s.Write(t.Context(), text(2), document.Version(text(1))); err != nil {
		t.Fatal(err)
	}
	until(t, func() bool { return book.State().Err == nil && limit(t, book) == 2 })
}

// The permissions that the pages tell to give suffice, for servers and for who pushes.
func TestPermissions(t *testing.T) {
	server := redistest.Start(t)
	as := func(name, page, begin string) redis.UniversalClient {
		t.Helper()
		text, err := os.ReadFile("../../docs/" + page)
		if err != nil {
			t.Fatal(err)
		}
		_, rest, found := strings.Cut(string(text), begin)
		rest, _, _ = strings.Cut(rest, "\n\n")
		words := append([]string{"ACL", "SETUSER", name, "reset", "on", ">password"}, strings.Fields(rest)...)
		if _, err := server.Do(words...); err != nil || !found {
			t.Fatal(err, found)
		}
		c := redis.NewClient(&redis.Options{Addr: server.Addr(), Username: name, Password: "password", ContextTimeoutEnabled: true})
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	const key = "headgate-limits"
	pushes := as("push", "headgate.md", "    ACL SETUSER push on >password resetkeys ")
	reads := as("reads", "limits.md", "    %R~headgate-limits")
	if _, err := server.Do("ACL", "SETUSER", "reads", "%R~headgate-limits"); err != nil {
		t.Fatal(err)
	}
	if err := redisdoc.Push(t.Context(), pushes, key, text(1)); err != nil {
		t.Fatal(err)
	}
	book := open(t, reads, key, limits.Config{})
	until(t, func() bool {
		reply, err := server.Do("PUBSUB", "NUMSUB", key)
		return err == nil && strings.Contains(fmt.Sprint(reply), "1")
	})
	if err := redisdoc.Push(t.Context(), pushes, key, text(2)); err != nil || limit(t, book) != 2 {
		t.Error(err, book.State())
	}
	if err := redisdoc.Push(t.Context(), reads, key, text(3)); err == nil {
		t.Error("a server may push")
	}
}
