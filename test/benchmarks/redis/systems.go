package main

import (
	"context"
	"fmt"
	"hash/maphash"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/throttled/throttled/v2"
	throttledstore "github.com/throttled/throttled/v2/store/goredisstore.v9"
	ulule "github.com/ulule/limiter/v3"
	ululestore "github.com/ulule/limiter/v3/drivers/store/redis"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/redisstore"
)

// A limit is the limit that every system applies to each key.
type limit struct {
	n   int
	per time.Duration
}

// roomy is never reached, and kept long enough that keys stay; tight is reached
// at once.
var (
	roomy = limit{1000, 24 * time.Hour}
	tight = limit{10, 24 * time.Hour}
)

// An ask charges one unit to a key.
type ask func(ctx context.Context, key string) (allowed bool, err error)

// A system is one library, used as its documentation says, with its own client and
// that client's defaults, in a database of its own.
type system struct {
	name  string
	batch int // keys in one pipeline, of a system with open.many
	open  func(at redis.Options) (opened, error)
}

// Opened is a system that is connected.
type opened struct {
	ask   func(limit) (ask, error)
	many  func(ctx context.Context, keys []string) error // charges all of them
	close func()
}

var systems = []system{
	{name: "headgate TokenBucket", open: headgate(merged, tokenBucket)},
	{name: "headgate TokenBucket, nothing remembered", open: headgate(forgetful, tokenBucket)},
	{name: "headgate TokenBucket, 60 a minute", open: headgate(merged, bucketOf60)},
	{name: "headgate SlidingLog of 60", open: headgate(merged, slidingLog(60))},
	{name: "headgate SlidingWindow", open: headgate(merged, slidingWindow)},
	{name: "headgate, two policies", open: headgate(merged, twoPolicies)},
	{name: "headgate TokenBucket, a fraction of a µs", open: headgate(merged, fraction)},
	{name: "headgate TokenBucket, 3 units", open: headgateUnits(3)},
	{name: "headgate TokenBucket, 3 plans", open: headgatePlans(3)},
	{name: "headgate TokenBucket, 1,000 plans", open: headgatePlans(1000)},
	{name: reference, open: redisRate},
	{name: "ulule/limiter", open: ululeRedis},
	{name: "throttled", open: throttledRedis},
	{name: "rueidis, GCRA script", open: rueidisGCRA(0)},
	{name: "rueidis, GCRA script, flushed after 20 µs", open: rueidisGCRA(20 * time.Microsecond)},
	{name: counter, open: floor(incr)},
	{name: "floor: EVALSHA, GCRA", open: floor(script(evalGCRA))},
	{name: "floor: EVALSHA, log in a ZSET", open: floor(script(evalZSET))},
	{name: "floor: 64 EVALSHA in a pipeline", batch: 64, open: pipelineGCRA},
}

const (
	reference = "redis_rate"  // what the others are compared with
	counter   = "floor: INCR" // the one that keeps no limit
)

// Without Redis, both fail instead of deciding, with the same timeouts as the clients of
// the others.
var (
	merged    = redisstore.Config{Failure: redisstore.FailClosed, Timeout: 3 * time.Second}
	forgetful = redisstore.Config{Failure: redisstore.FailClosed, Timeout: 3 * time.Second, RefusalTTL: -1}
)

// address returns the URL of a Redis.
func address(at redis.Options) string { return fmt.Sprintf("redis://%s/%d", at.Addr, at.DB) }

func headgate(c redisstore.Config, policies func(limit) []core.Policy) func(redis.Options) (opened, error) {
	return func(at redis.Options) (opened, error) {
		store, err := redisstore.Open(address(at), c)
		if err != nil {
			return opened{}, err
		}
		return opened{
			ask: func(l limit) (ask, error) {
				limiter := core.NewLimiter(store, "api", policies(l)...)
				return func(ctx context.Context, key string) (bool, error) {
					d, err := limiter.Allow(ctx, key)
					return d.Allowed, err
				}, nil
			},
			close: func() { _ = store.Close(context.Background()) },
		}, nil
	}
}

// headgateUnits charges so many units at once, of as many times the limit.
func headgateUnits(n int64) func(redis.Options) (opened, error) {
	return func(at redis.Options) (opened, error) {
		store, err := redisstore.Open(address(at), merged)
		if err != nil {
			return opened{}, err
		}
		return opened{
			ask: func(l limit) (ask, error) {
				l.n *= int(n)
				limiter := core.NewLimiter(store, "api", tokenBucket(l)...)
				return func(ctx context.Context, key string) (bool, error) {
					d, err := limiter.AllowN(ctx, key, n)
					return d.Allowed, err
				}, nil
			},
			close: func() { _ = store.Close(context.Background()) },
		}, nil
	}
}

// headgatePlans has so many plans, of which each key has one.
func headgatePlans(count int) func(redis.Options) (opened, error) {
	return func(at redis.Options) (opened, error) {
		store, err := redisstore.Open(address(at), merged)
		if err != nil {
			return opened{}, err
		}
		return opened{
			ask: func(l limit) (ask, error) {
				limiter := core.NewLimiter(store, "api", tokenBucket(l)...)
				plans, seed := make([]*core.Limiter, count), maphash.MakeSeed()
				for i := range plans {
					slower := limit{l.n, l.per + time.Duration(i)*time.Second}
					name := strconv.Itoa(i)
					plans[i] = limiter.WithPlan(name, tokenBucket(slower)...).Plan(name)
				}
				return func(ctx context.Context, key string) (bool, error) {
					number := maphash.String(seed, key) // a key keeps its plan
					d, err := plans[number%uint64(len(plans))].Allow(ctx, key)
					return d.Allowed, err
				}, nil
			},
			close: func() { _ = store.Close(context.Background()) },
		}, nil
	}
}

func tokenBucket(l limit) []core.Policy {
	return []core.Policy{core.TokenBucket(int64(l.n), l.per)}
}

// fraction has a rate of no whole number of microseconds for a unit.
func fraction(l limit) []core.Policy {
	l.per += time.Microsecond
	return tokenBucket(l)
}

func slidingWindow(l limit) []core.Policy {
	return []core.Policy{core.SlidingWindow(int64(l.n), l.per)}
}

func slidingLog(n int) func(limit) []core.Policy {
	return func(l limit) []core.Policy {
		if l == roomy {
			l.n = n
		}
		if l.n == 60 {
			l.per = time.Minute // so that it is not reached
		}
		return []core.Policy{core.SlidingLog(int64(l.n), l.per)}
	}
}

// bucketOf60 has the period of a log of 60: lives are renewed as often.
func bucketOf60(l limit) []core.Policy {
	if l == roomy {
		l = limit{60, time.Minute}
	}
	return tokenBucket(l)
}

func twoPolicies(l limit) []core.Policy {
	return []core.Policy{
		core.TokenBucket(int64(l.n), l.per).Named("bucket"),
		core.FixedWindow(1_000_000, 24*time.Hour).Named("day"),
	}
}

func redisRate(at redis.Options) (opened, error) {
	client := redis.NewClient(&at)
	limiter := redis_rate.NewLimiter(client)
	return opened{
		ask: func(l limit) (ask, error) {
			r := redis_rate.Limit{Rate: l.n, Burst: l.n, Period: l.per}
			return func(ctx context.Context, key string) (bool, error) {
				res, err := limiter.Allow(ctx, key, r)
				return err == nil && res.Allowed > 0, err
			}, nil
		},
		close: func() { _ = client.Close() },
	}, nil
}

func ululeRedis(at redis.Options) (opened, error) {
	client := redis.NewClient(&at)
	store, err := ululestore.NewStore(client)
	return opened{
		ask: func(l limit) (ask, error) {
			limiter := ulule.New(store, ulule.Rate{Limit: int64(l.n), Period: l.per})
			return func(ctx context.Context, key string) (bool, error) {
				c, err := limiter.Get(ctx, key)
				return !c.Reached, err
			}, nil
		},
		close: func() { _ = client.Close() },
	}, err
}

func throttledRedis(at redis.Options) (opened, error) {
	client := redis.NewClient(&at)
	store, err := throttledstore.NewCtx(client, "throttled:")
	return opened{
		ask: func(l limit) (ask, error) {
			limiter, err := throttled.NewGCRARateLimiterCtx(store, throttled.RateQuota{
				MaxRate:  throttled.PerDuration(l.n, l.per),
				MaxBurst: l.n - 1,
			})
			return func(ctx context.Context, key string) (bool, error) {
				limited, _, err := limiter.RateLimitCtx(ctx, key, 1)
				return !limited, err
			}, err
		},
		close: func() { _ = client.Close() },
	}, err
}

// gcra is the least that a token bucket on the server's clock can do: its state is
// packed, and its reply is one number, 0 or the microseconds to wait. ARGV: the
// microseconds for a unit, and for all of them.
const gcra = `
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local state = redis.call('GET', KEYS[1])
local full = state and struct.unpack('>I7', state) or now
if full < now then full = now end
full = full + ARGV[1]
if full - now > tonumber(ARGV[2]) then return full - now - ARGV[2] end
redis.call('SET', KEYS[1], struct.pack('>I7', full), 'PX', math.ceil((full - now) / 1000))
return 0`

// zset keeps the instant of each event in a sorted set, as logs in Redis are
// mostly built. ARGV: the limit, the microseconds of the window, a unique suffix.
const zset = `
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now - ARGV[2]))
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[1]) then return 1 end
local at = string.format('%.0f', now)
redis.call('ZADD', KEYS[1], at, at .. ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[2] / 1000)
return 0`

var (
	gcraScript = redis.NewScript(gcra)
	zsetScript = redis.NewScript(zset)
	zsetNonce  atomic.Int64
)

func evalGCRA(ctx context.Context, c redis.Cmdable, key string, l limit) *redis.Cmd {
	return c.EvalSha(ctx, gcraScript.Hash(), []string{key}, (l.per / time.Duration(l.n)).Microseconds(), l.per.Microseconds())
}

func evalZSET(ctx context.Context, c redis.Cmdable, key string, l limit) *redis.Cmd {
	if l == roomy {
		l = limit{60, time.Minute}
	}
	return c.EvalSha(ctx, zsetScript.Hash(), []string{key}, l.n, l.per.Microseconds(), zsetNonce.Add(1))
}

func incr(ctx context.Context, c redis.Cmdable, key string, _ limit) (bool, error) {
	return true, c.Incr(ctx, key).Err()
}

// script sends a script that answers 0 if it admits.
func script(eval func(context.Context, redis.Cmdable, string, limit) *redis.Cmd) call {
	return func(ctx context.Context, c redis.Cmdable, key string, l limit) (bool, error) {
		answer, err := eval(ctx, c, key, l).Int64()
		return answer == 0, err
	}
}

type call func(ctx context.Context, c redis.Cmdable, key string, l limit) (allowed bool, err error)

// floor sends one command by go-redis.
func floor(do call) func(redis.Options) (opened, error) {
	return func(at redis.Options) (opened, error) {
		client, err := withScripts(at)
		return opened{
			ask: func(l limit) (ask, error) {
				return func(ctx context.Context, key string) (bool, error) { return do(ctx, client, key, l) }, nil
			},
			close: func() { _ = client.Close() },
		}, err
	}
}

func withScripts(at redis.Options) (*redis.Client, error) {
	client := redis.NewClient(&at)
	for _, s := range []*redis.Script{gcraScript, zsetScript} {
		if err := s.Load(context.Background(), client).Err(); err != nil {
			return client, err
		}
	}
	return client, nil
}

// pipelineGCRA sends decisions in explicit pipelines.
func pipelineGCRA(at redis.Options) (opened, error) {
	o, err := floor(script(evalGCRA))(at)
	if err != nil {
		return o, err
	}
	client := redis.NewClient(&at)
	o.many = func(ctx context.Context, keys []string) error {
		_, err := client.Pipelined(ctx, func(p redis.Pipeliner) error {
			for _, key := range keys {
				evalGCRA(ctx, p, key, roomy)
			}
			return nil
		})
		return err
	}
	closeFloor := o.close
	o.close = func() {
		closeFloor()
		_ = client.Close()
	}
	return o, nil
}

// rueidisGCRA is the floor's script by a client that pipelines by itself, and may wait for so
// long to have more to send at once. It has no cache to keep, but the database to choose.
func rueidisGCRA(delay time.Duration) func(redis.Options) (opened, error) {
	return func(at redis.Options) (opened, error) {
		client, err := rueidis.NewClient(rueidis.ClientOption{
			InitAddress: []string{at.Addr}, SelectDB: at.DB, DisableCache: true, MaxFlushDelay: delay,
		})
		if err != nil {
			return opened{}, err
		}
		return askGCRA(client), nil
	}
}

func askGCRA(client rueidis.Client) opened {
	script := rueidis.NewLuaScript(gcra)
	return opened{
		ask: func(l limit) (ask, error) {
			args := []string{
				strconv.FormatInt((l.per / time.Duration(l.n)).Microseconds(), 10),
				strconv.FormatInt(l.per.Microseconds(), 10),
			}
			return func(ctx context.Context, key string) (bool, error) {
				wait, err := script.Exec(ctx, client, []string{key}, args).AsInt64()
				return wait == 0, err
			}, nil
		},
		close: client.Close,
	}
}
