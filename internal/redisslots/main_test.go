package redisslots

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/outage"
	"github.com/headgate/headgate/internal/rediskey"
	"github.com/headgate/headgate/internal/redistest/proctest"
	"github.com/headgate/headgate/internal/slots"
	"github.com/headgate/headgate/internal/slots/keeper"
	"github.com/headgate/headgate/internal/step"
)

var (
	rounds  = flag.Int("rounds", 1, "how often tests with real processes and servers are repeated")
	burners = flag.Int("burners", 0, "how many processes make the machine busy beside TestChurn")
)

// patient is how long a test waits for what has no time of its own: on a busy machine that may take long.
const patient = 20 * time.Second

func TestMain(m *testing.M) {
	redis.SetLogger(silent{}) // tests break connections on purpose
	proctest.Main(m, proctest.Funcs{"hold": hold, "churn": churn, "retry": retry, "burn": burn})
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// defaults are the settings of users who set none.
func defaults() Config {
	return Config{Names: rediskey.New("headgate", nil), Config: keeper.Config{TTL: 15 * time.Second, Timeout: 2 * time.Second}}
}

// brief has times that tests can wait for. While Redis is away, nobody decides.
func brief(ttl time.Duration) Config {
	return Config{Names: rediskey.New("headgate", nil), Config: keeper.Config{TTL: ttl, Timeout: ttl / 3, Failure: outage.FailClosed}}
}

// open opens a store of a Redis, or of a Cluster if there are several addresses.
func open(t testing.TB, c Config, addrs ...string) *Registry {
	return openWith(t, c, &redis.UniversalOptions{Addrs: addrs})
}

func openWith(t testing.TB, c Config, o *redis.UniversalOptions) *Registry {
	o.ContextTimeoutEnabled, o.MaxRetries, o.DialerRetries, o.PoolSize = true, -1, 1, 64
	client := redis.NewUniversalClient(o)
	if t != nil {
		t.Cleanup(func() { _ = client.Close() })
	}
	return New(client, c)
}

func claim(key string, limit int64) slots.Acquisition {
	return slots.Acquisition{Name: "ws", Key: key, Limit: limit}
}

func acquires(t testing.TB, s *Registry, key string, limit int64) slots.Grant {
	t.Helper()
	g, err := s.Acquire(t.Context(), claim(key, limit))
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// isCounted reports whether that many slots of a key are held.
func isCounted(t testing.TB, s *Registry, key string, want int64) bool {
	n, err := s.Count(t.Context(), "ws", key)
	return err == nil && n == want
}

// until waits until a condition holds, and returns how long that took.
func until(t testing.TB, what string, within time.Duration, holds func() bool) time.Duration {
	t.Helper()
	start := time.Now()
	for !holds() {
		if time.Since(start) > within {
			t.Fatalf("%s: not within %v", what, within)
		}
		<-time.After(2 * time.Millisecond)
	}
	return time.Since(start)
}

// hold is a process that takes three slots of a key, and says when they are lost.
func hold(args []string) error {
	ttl, err := time.ParseDuration(args[1])
	if err != nil {
		return err
	}
	s := open(nil, brief(ttl), args[0])
	var all []slots.Grant
	for len(all) < 3 {
		if g, err := s.Acquire(context.Background(), claim("key", 3)); err == nil {
			all = append(all, g)
		}
	}
	fmt.Println("holds")
	for _, g := range all {
		<-g.Lost()
	}
	fmt.Println("lost")
	_, _ = io.Copy(io.Discard, os.Stdin)
	return nil
}

const churnKeys, churnLimit = 5, 7

// churn is a process that acquires and releases, and counts in Redis what all hold: a slot is entered, under the name of the
// process, after it was granted and struck out before it is released. It says how many it was granted, and each time that
// there were too many.
func churn(args []string) error {
	s := open(nil, defaults(), args[0])
	var all sync.WaitGroup
	ctx := context.Background()
	for g := range 10 {
		all.Go(func() {
			for {
				c := claim("churn"+strconv.Itoa(rand.IntN(churnKeys)), churnLimit)
				wait, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
				if g%2 == 0 {
					c.Queue = 5
				}
				grant, err := s.Acquire(wait, c)
				cancel()
				if err != nil {
					if !errors.Is(err, slots.ErrFull) && !errors.Is(err, context.DeadlineExceeded) {
						fmt.Println("fault", err)
					}
					<-time.After(rand.N(time.Millisecond))
					continue
				}
				if grant.Source != step.SourceStore {
					fmt.Println("fault granted by", grant.Source)
				}
				member := args[1] + strconv.FormatUint(rand.Uint64(), 36)
				pipe := s.client.TxPipeline()
				pipe.SAdd(ctx, "held:"+c.Key, member)
				n := pipe.SCard(ctx, "held:"+c.Key)
				if _, err := pipe.Exec(ctx); err == nil && n.Val() > churnLimit {
					fmt.Println("fault", n.Val(), "are held")
				}
				fmt.Println("granted")
				for s.client.SRem(ctx, "held:"+c.Key, member).Err() != nil {
					<-time.After(time.Millisecond)
				}
				grant.Release()
			}
		})
	}
	all.Wait()
	return nil
}

const retryKeys, retryLimit = 50, 5

// retry is a process that asks for full keys in turn, under FailLocal, and says what granted it a slot.
func retry(args []string) error {
	s := open(nil, defaults(), args[0])
	var all sync.WaitGroup
	for g := range 64 {
		all.Go(func() {
			for i := g; ; i++ {
				if grant, err := s.Acquire(context.Background(), claim(fmt.Sprint("k", i%retryKeys), retryLimit)); err == nil {
					fmt.Println(grant.Source)
					grant.Release()
				}
				<-time.After(time.Millisecond)
			}
		})
	}
	all.Wait()
	return nil
}

// burn keeps a processor busy.
func burn([]string) error {
	runtime.LockOSThread()
	for i := 0; ; i++ { //nolint:revive,staticcheck // that is its task
	}
}
