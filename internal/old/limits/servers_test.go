package limits_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/redisstore"
	"github.com/headgate/headgate/internal/old/limits"
	"github.com/headgate/headgate/internal/redistest"
	"github.com/headgate/headgate/internal/redistest/proctest"
)

// patient is a Timeout for tests in which Redis is always there.
const patient = 20 * time.Second

func redisStore(addr string) (*redisstore.Store, error) {
	return redisstore.Open(&redis.UniversalOptions{Addrs: []string{addr}}, redisstore.Config{Timeout: patient})
}

func newRedisStore(t testing.TB) *redisstore.Store {
	t.Helper()
	s, err := redisStore(redistest.Start(t).Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Client().Close() })
	return s
}

// The same as in memory, over Redis.
func TestReloadsUnderLoadOverRedis(t *testing.T) {
	reloads := 10_000
	if testing.Short() {
		reloads = 1000
	}
	reloadsUnderLoad(t, newRedisStore(t), reloads, 8)
}

// server is a process with limits from a file. For each line "ask n version" it waits until it has
// the version, asks n times, and prints how often it was admitted.
func server(args []string) error {
	store, err := redisStore(args[0])
	if err != nil {
		return err
	}
	ctx := context.Background()
	book, err := limits.Open(ctx, store, true, limits.File(args[1]), limits.Config{Every: 10 * time.Millisecond})
	if err != nil {
		return err
	}
	defer book.Close()
	api, err := book.Limit("api")
	if err != nil {
		return err
	}
	fmt.Println("ready")
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var n int
		var limiter string
		if _, err := fmt.Sscanf(lines.Text(), "ask %d %s", &n, &limiter); err != nil {
			return err
		}
		for limiter != "any" && text(api.For("", "k")) != "api: "+strings.ReplaceAll(limiter, "_", " ") {
			runtime.Gosched()
		}
		admitted := 0
		for range n {
			d, err := api.For("", "k").Allow(ctx, "k")
			if err != nil {
				return err
			}
			if d.Allowed {
				admitted++
			}
		}
		fmt.Println(admitted)
	}
	return lines.Err()
}

// Several servers: a raised limit admits the client that was refused at once, on each of them,
// although each remembers the refusal. A lowered one admits no more than the larger.
func TestServers(t *testing.T) {
	addr := redistest.Start(t).Addr()
	name := filepath.Join(t.TempDir(), "limits.json")
	write(t, name, free(`"sliding-log 10/36500d"`))
	servers := make([]*proctest.Process, 3)
	for i := range servers {
		servers[i] = proctest.Start(t, "server", addr, name)
	}
	for _, p := range servers {
		p.Line()
	}
	ask := func(n int, limiter string) (admitted []int) {
		for _, p := range servers {
			p.Send(fmt.Sprintf("ask %d %s", n, limiter))
		}
		for _, p := range servers {
			var got int
			if _, err := fmt.Sscan(p.Line(), &got); err != nil {
				t.Fatal(err)
			}
			admitted = append(admitted, got)
		}
		return admitted
	}
	sum := func(all []int) (n int) {
		for _, one := range all {
			n += one
		}
		return n
	}
	if got := ask(50, "any"); sum(got) != 10 {
		t.Errorf("%v were admitted of 10", got)
	}
	write(t, name, free(`"sliding-log 13/36500d"`))
	if got := ask(1, "sliding-log_13/36500d"); sum(got) != 3 {
		t.Errorf("%v were admitted at once, not 1 by each", got)
	}
	write(t, name, free(`"sliding-log 5/36500d"`))
	if got := ask(10, "any"); sum(got) != 0 {
		t.Errorf("%v were admitted beyond the larger limit", got)
	}
	if got := ask(10, "sliding-log_5/36500d"); sum(got) != 0 {
		t.Errorf("%v were admitted by the smaller limit", got)
	}
	write(t, name, free(`"sliding-log 20/36500d"`))
	if got := ask(10, "any"); sum(got) > 7 {
		t.Errorf("%v were admitted while the limit rose to 20, of which 13 were used", got)
	}
	if got := ask(10, "sliding-log_20/36500d"); sum(got) > 7 {
		t.Errorf("%v were admitted beyond 20", got)
	}
	for _, p := range servers {
		p.Kill()
	}
}

// What is admitted under a raised limit is admitted at once, also by a bucket whose burst is
// raised, and slots. Algorithms that count otherwise are in the table for each that there is.
func TestRaisedLimitsAdmitAtOnce(t *testing.T) {
	for _, redis := range []bool{false, true} {
		for _, c := range [][2]string{
			{"token-bucket 1/day burst 2", "token-bucket 1/day burst 3"},
			{"fixed-window 2/36500d", "fixed-window 3/36500d"},
			{"sliding-window 2/day", "sliding-window 3/day"},
			{"sliding-log 2/day", "sliding-log 3/day"},
			{"min-interval 1d", "min-interval 1us"},
			{"blocked", "sliding-log 1/day"},
		} {
			t.Run(fmt.Sprintf("%s, Redis %t", c[1], redis), func(t *testing.T) {
				source := newBoard(free(`"` + c[0] + `"`))
				var b *limits.Book
				if redis {
					store := newRedisStore(t)
					b = openIn(t, store, true, source, limits.Config{})
				} else {
					b = open(t, source, limits.Config{})
				}
				api := limit(t, b, "api")
				var d core.Decision
				for range 10 {
					if d = allow(t, api.For("", "k"), "k"); !d.Allowed {
						break
					}
				}
				if d.Allowed {
					t.Fatal("it was not refused")
				}
				source.write(free(`"` + c[1] + `"`))
				reload(t, b)
				if d := allow(t, api.For("", "k"), "k"); !d.Allowed {
					t.Error(d)
				}
			})
		}
	}
}
