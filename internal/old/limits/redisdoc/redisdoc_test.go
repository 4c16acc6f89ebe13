package redisdoc_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/limits"
	"github.com/headgate/headgate/internal/old/limits/redisdoc"
	"github.com/headgate/headgate/internal/redistest"
)

func TestMain(m *testing.M) {
	redis.SetLogger(silent{}) // tests break connections on purpose
	m.Run()
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// connect returns a source of a server. The instances have names in order.
func connect(t testing.TB, server *redistest.Server, c redisdoc.Config, user ...string) *redisdoc.Source {
	t.Helper()
	options := &redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true, MaxRetries: -1, DialTimeout: time.Second}
	if len(user) > 0 {
		options.Username, options.Password = user[0], user[1]
	}
	client := redis.NewClient(options)
	t.Cleanup(func() { _ = client.Close() })
	s, err := redisdoc.New(client, c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func document(t testing.TB, limit int) *limits.Document {
	t.Helper()
	d, err := limits.Parse(text(limit), nil)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func text(limit int) []byte {
	return fmt.Appendf(nil, `{"limits": {"api": {"plans": {"free": "sliding-log %d/minute"}, "overrides": [{"key": "k", "plan": "blocked"}]}}}`, limit)
}

// patient is for tests in which Redis answers.
const patient = 20 * time.Second

func open(t testing.TB, s *redisdoc.Source, c limits.Config) *limits.Book {
	t.Helper()
	if c.Timeout == 0 {
		c.Timeout = patient
	}
	b, err := limits.Open(t.Context(), memstore.New(memstore.Config{}), false, s, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

// until waits until it is true.
func until(is func() bool) {
	for !is() {
		runtime.Gosched()
	}
}

func push(t testing.TB, s *redisdoc.Source, limit int) {
	t.Helper()
	_, version, err := s.Current(t.Context())
	if err != nil && !errors.Is(err, redisdoc.ErrTorn) {
		t.Fatal(err)
	}
	next, err := s.Push(t.Context(), document(t, limit), version)
	if err != nil || next <= version {
		t.Fatalf("%v: version %d after %d", err, next, version)
	}
}

// All servers get a new document, and each can see that they have. They are woken: they ask by
// themselves only every 1000 hours.
func TestAllServersGetIt(t *testing.T) {
	server := redistest.Start(t)
	s := connect(t, server, redisdoc.Config{})
	push(t, s, 1)
	var books []*limits.Book
	for i := range 3 {
		books = append(books, open(t, connect(t, server, redisdoc.Config{Instance: fmt.Sprint("server ", i)}), limits.Config{Every: 1000 * time.Hour}))
	}
	until(func() bool { // all listen
		n, err := server.Do("PUBSUB", "NUMSUB", redisdoc.DefaultKey)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(n) == fmt.Sprintf("[%s 3]", redisdoc.DefaultKey)
	})
	for limit := 2; limit < 20; limit++ {
		push(t, s, limit)
		want := document(t, limit).Version()
		for _, b := range books {
			until(func() bool { return b.State().Version == want })
		}
		until(func() bool {
			all, err := s.Servers(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			n := 0
			for _, one := range all {
				if one.Version == want && one.Err == "" {
					n++
				}
			}
			return n == 3
		})
	}
}

// Without PUBLISH, the version is found by asking; and only the version is asked for.
func TestItIsAskedFor(t *testing.T) {
	server := redistest.Start(t)
	s := connect(t, server, redisdoc.Config{})
	push(t, s, 1)
	b := open(t, s, limits.Config{Every: 10 * time.Millisecond})
	server.ResetStats()
	until(func() bool { return server.Calls("hget") > 10 })
	if n := server.Calls("hmget"); n > 0 {
		t.Errorf("the document was read %d times", n)
	}
	if _, err := server.Do("HSET", redisdoc.DefaultKey, "version", "9007199254740991", "document", string(text(2))); err != nil {
		t.Fatal(err)
	}
	want := document(t, 2).Version()
	until(func() bool { return b.State().Version == want })
}

// What was not pushed, and a version that is lower, leave the limits as they are.
func TestWhatIsNoDocument(t *testing.T) {
	server := redistest.Start(t)
	s := connect(t, server, redisdoc.Config{})
	if _, err := s.Load(t.Context()); err == nil || !strings.Contains(err.Error(), "there is no document at {headgate-limits}: push one") {
		t.Error(err)
	}
	push(t, s, 1)
	b := open(t, s, limits.Config{Every: time.Hour})
	want := b.State().Version
	fails := func(text string) {
		t.Helper()
		if err := b.Reload(t.Context()); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%v, not %s", err, text)
		}
		if b.State().Version != want {
			t.Error("the limits have changed")
		}
	}
	do := func(args ...string) {
		t.Helper()
		if _, err := server.Do(args...); err != nil {
			t.Fatal(err)
		}
	}
	_, version, err := s.Current(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	do("HSET", redisdoc.DefaultKey, "version", fmt.Sprint(version-1))
	fails("the version went back from " + fmt.Sprint(version) + " to " + fmt.Sprint(version-1))
	for _, text := range []string{"x", "", "-1", "1.5", "007", "9007199254740992", "99999999999999999999"} {
		do("HSET", redisdoc.DefaultKey, "version", text)
		fails("it has no version, or no document: push one")
	}
	do("HDEL", redisdoc.DefaultKey, "document")
	fails("it has no version, or no document: push one")
	_, replaces, err := s.Current(t.Context()) // another push mends it
	if !errors.Is(err, redisdoc.ErrTorn) || replaces != 0 {
		t.Errorf("%d, %v", replaces, err)
	}
	push(t, s, 1)
	if err := b.Reload(t.Context()); err != nil {
		t.Error(err)
	}
	do("SET", redisdoc.DefaultKey, "text")
	fails("WRONGTYPE")
	server.Flush()
	fails("there is no document")
	push(t, s, 1) // also after everything was lost, the version is larger
	if err := b.Reload(t.Context()); err != nil {
		t.Error(err)
	}
	do("HSET", redisdoc.DefaultKey, "version", "9007199254740990", "document", `{"limits": {}}`)
	fails("the document has no limits")
	push(t, s, 2)
	if err := b.Reload(t.Context()); err != nil {
		t.Error(err)
	}
}

// Two who push at the same time: one of them is told.
func TestConflict(t *testing.T) {
	s := connect(t, redistest.Start(t), redisdoc.Config{})
	version, err := s.Push(t.Context(), document(t, 1), 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Push(t.Context(), document(t, 2), 0); !errors.Is(err, redisdoc.ErrConflict) {
		t.Error(err)
	}
	if _, err := s.Push(t.Context(), document(t, 2), version); err != nil {
		t.Error(err)
	}
	if _, err := s.Push(t.Context(), document(t, 3), version); !errors.Is(err, redisdoc.ErrConflict) {
		t.Error(err)
	}
}

// Redis is away at the start, comes, goes and comes back: the document is the one before until
// then, and what is wrong is told.
func TestRedisGoesAndComes(t *testing.T) {
	server := redistest.Start(t, "appendonly yes", "appendfsync always")
	push(t, connect(t, server, redisdoc.Config{}), 1)
	server.Kill()
	s := connect(t, server, redisdoc.Config{})
	b := open(t, s, limits.Config{Initial: text(7), Every: 10 * time.Millisecond, Timeout: time.Second})
	if state := b.State(); !state.Initial || state.Err == nil || state.Version != document(t, 7).Version() {
		t.Errorf("%+v", state)
	}
	for limit := 1; limit < 4; limit++ {
		server.Restart()
		want := document(t, limit).Version()
		until(func() bool { return b.State().Version == want && b.State().Err == nil })
		push(t, connect(t, server, redisdoc.Config{}), limit+1)
		want = document(t, limit+1).Version()
		until(func() bool { return b.State().Version == want })
		server.Kill()
		until(func() bool { return b.State().Err != nil })
		if state := b.State(); state.Version != want {
			t.Errorf("%+v", state)
		}
	}
}

// A user with the permissions of the package's comment can read the document, be woken, and tell
// of itself, and cannot write it.
func TestPermissions(t *testing.T) {
	server := redistest.Start(t)
	for _, set := range []string{
		"ACL SETUSER server on >password resetkeys %R~{headgate-limits} ~{headgate-limits}:servers resetchannels &{headgate-limits} -@all +hget +hmget +hset +hdel +time +subscribe +unsubscribe +ping",
		"ACL SETUSER pusher on >password resetkeys ~{headgate-limits} ~{headgate-limits}:servers resetchannels -@all " + pusherMay,
		"ACL SETUSER reader on >password resetkeys ~{headgate-limits} resetchannels -@all +hget +hmget",
	} {
		if _, err := server.Do(strings.Fields(set)...); err != nil {
			t.Skipf("HEADGATE_REQUIRE or not, it is older than 7: %v", err)
		}
	}
	admin := connect(t, server, redisdoc.Config{})
	push(t, admin, 1)
	s := connect(t, server, redisdoc.Config{}, "server", "password")
	b := open(t, s, limits.Config{Every: 1000 * time.Hour})
	until(func() bool {
		all, err := admin.Servers(t.Context())
		return err == nil && len(all) == 1 && all[0].Version == b.State().Version
	})
	until(func() bool {
		n, _ := server.Do("PUBSUB", "NUMSUB", redisdoc.DefaultKey)
		return fmt.Sprint(n) == fmt.Sprintf("[%s 1]", redisdoc.DefaultKey)
	})
	push(t, admin, 2)
	until(func() bool { return b.State().Version == document(t, 2).Version() })
	if _, err := s.Push(t.Context(), document(t, 3), 0); err == nil || !strings.Contains(err.Error(), "NOPERM") {
		t.Error(err)
	}
	push(t, connect(t, server, redisdoc.Config{}, "pusher", "password"), 5) // without the channel: servers ask
	if err := b.Reload(t.Context()); err != nil || b.State().Version != document(t, 5).Version() {
		t.Error(err)
	}
	reader := open(t, connect(t, server, redisdoc.Config{}, "reader", "password"), limits.Config{Every: 10 * time.Millisecond})
	push(t, admin, 4)
	until(func() bool { return reader.State().Version == document(t, 4).Version() && reader.State().Err == nil })
}

// pusherMay is what docs/headgate.md says that headgate push needs, but for the channel.
const pusherMay = "+exists +hmget +hget +hset +hdel +hgetall +eval +time +publish"

// Who is alive is known by the clock of Redis, whatever the clocks of servers and operators say.
func TestServersByTheClockOfRedis(t *testing.T) {
	server := redistest.Start(t)
	s := connect(t, server, redisdoc.Config{})
	tell := func(instance string, ago time.Duration) {
		t.Helper()
		now, err := server.Do("TIME")
		if err != nil {
			t.Fatal(err)
		}
		seconds, _ := strconv.ParseInt(fmt.Sprint(now.([]any)[0]), 10, 64)
		text := fmt.Sprintf(`{"instance": %q, "version": "v", "found": 1, "at": %q}`, instance, time.Unix(seconds, 0).Add(-ago).Format(time.RFC3339))
		if _, err := server.Do("HSET", redisdoc.DefaultKey+":servers", instance, text); err != nil {
			t.Fatal(err)
		}
	}
	tell("alive", 2*time.Second)
	tell("late", time.Minute)
	tell("dead", 2*time.Hour)
	tell("ahead", -time.Minute) // the clock of Redis went back
	tell("far ahead", -2*time.Hour)
	all, err := s.Servers(t.Context())
	if err != nil || len(all) != 1 || all[0].Instance != "alive" {
		t.Errorf("%v, %+v", err, all)
	}
	if n, err := server.Do("HLEN", redisdoc.DefaultKey+":servers"); err != nil || fmt.Sprint(n) != "3" {
		t.Errorf("%v are remembered: %v", n, err)
	}
}

// Redis has lost the document, and its clock is behind the one before: a push is still newer than what
// servers have read.
func TestRedisLosesTheDocumentAndTheTime(t *testing.T) {
	server := redistest.Start(t)
	s := connect(t, server, redisdoc.Config{})
	const ahead int64 = 1 << 51 // milliseconds
	if _, err := server.Do("HSET", redisdoc.DefaultKey, "version", fmt.Sprint(ahead), "document", string(text(1))); err != nil {
		t.Fatal(err)
	}
	b := open(t, connect(t, server, redisdoc.Config{}), limits.Config{Every: 10 * time.Millisecond})
	server.Flush()
	until(func() bool {
		all, err := s.Servers(t.Context())
		return err == nil && len(all) == 1 && all[0].Found == ahead
	})
	if _, err := server.Do("HSET", redisdoc.DefaultKey+":servers", "liar", `{"found": 9007199254740990, "at": "`+time.Now().Format(time.RFC3339)+`"}`); err != nil {
		t.Fatal(err)
	}
	if version, err := s.Push(t.Context(), document(t, 2), 0); err != nil || version != ahead+1 {
		t.Errorf("version %d: %v", version, err)
	}
	if err := b.Reload(t.Context()); err != nil || b.State().Version != document(t, 2).Version() {
		t.Errorf("%v, %+v", err, b.State())
	}
}

// A document whose canonical form is too long to be read is not written.
func TestPushOfWhatNobodyReads(t *testing.T) {
	s := connect(t, redistest.Start(t), redisdoc.Config{})
	d, err := limits.Parse([]byte(`{"slots": {"ws": {"plans": {"a": 1}, "overrides": [{"key": "k", "slots": 2, "note": "`+strings.Repeat("\u2028", limits.MaxBytes/5)+`"}]}}}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Push(t.Context(), d, 0); err == nil || !strings.Contains(err.Error(), "servers would not read the document as it is published: the document has") {
		t.Error(err)
	}
	if _, version, err := s.Current(t.Context()); version != 0 {
		t.Errorf("version %d was pushed: %v", version, err)
	}
}
