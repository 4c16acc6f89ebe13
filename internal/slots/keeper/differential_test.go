package keeper

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/redistest"
)

// The model that the simulation runs, and the scripts, do the same.
func TestScriptsAgreeWithTheModel(t *testing.T) {
	for name, addr := range map[string]string{"Redis": redistest.Start(t).Addr(), "miniredis": miniredis.RunT(t).Addr()} {
		t.Run(name, func(t *testing.T) {
			client := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, ReadTimeout: time.Minute, WriteTimeout: time.Minute}) // what is sent twice is done twice
			defer client.Close()
			statements := 0
			for seed := range uint64(*differentials) {
				statements += differ(t, client, rand.New(rand.NewPCG(seed, 1)))
				if err := client.FlushAll(t.Context()).Err(); err != nil {
					t.Fatal(err)
				}
			}
			t.Log(statements, "statements and beats")
		})
	}
}

func differ(t *testing.T, client *redis.Client, rng *rand.Rand) (n int) {
	ctx := t.Context()
	m := newModel()
	now := int64(1_700_000_000_000_000)
	ids := make([]string, 14)
	for i := range ids {
		ids[i] = fmt.Sprintf("%c.%d", 'a'+i%3, i)
	}
	some := func() (out []string) {
		for range rng.IntN(3) {
			out = append(out, ids[rng.IntN(len(ids))])
		}
		return out
	}
	for step := range 300 {
		n++
		if rng.IntN(3) == 0 {
			now += rng.Int64N(3_000_000) - 500_000
			if rng.IntN(40) == 0 {
				now += 100 * 3600_000_000
			}
			b := &Beat{ID: ids[rng.IntN(len(ids))], Register: rng.IntN(2) == 0, TTL: 3 * time.Second, Step: time.Second, Seen: some()}
			if rng.IntN(2) == 0 {
				b.Known = rng.Int64N(max(m.scores["#clock"], 1) + 2)
			}
			if rng.IntN(50) == 0 {
				b.Step = 30 * time.Hour // tombstones come to their end
			}
			want := *b
			m.beat(now, &want)
			reply, err := client.Eval(ctx, BeatScript, []string{"inst"}, b.Args(strconv.FormatInt(now, 10))...).Slice()
			if err != nil {
				t.Fatal(err)
			}
			if err := b.Read(reply); err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(*b, want) {
				t.Fatalf("step %d: %+v\nwant %+v", step, *b, want)
			}
			if got := scores(ctx, t, client); !maps.Equal(got, m.scores) {
				t.Fatalf("step %d: %v\nwant %v", step, got, m.scores)
			}
			continue
		}
		s := Statement{
			Key: strconv.Itoa(rng.IntN(3)), ID: ids[rng.IntN(len(ids))], Seq: 1 + rng.Int64N(int64(step+2)), Held: rng.Int64N(4),
			Delete: rng.IntN(2) == 0, List: rng.IntN(2) == 0, Drop: some(),
		}
		if rng.IntN(2) == 0 {
			s.Want, s.Most, s.Waits = 1+rng.Int64N(4), rng.Int64N(40), rng.IntN(2) == 0
		}
		m.now = now + rng.Int64N(1_000_000)
		s.Instant = strconv.FormatInt(m.now, 10)
		s.Drop = slices.DeleteFunc(s.Drop, func(id string) bool { return id == s.ID })
		want := s
		m.state(&want)
		reply, err := client.Eval(ctx, StatementScript, []string{s.Key}, s.Args()...).Slice()
		if err != nil {
			t.Fatal(err)
		}
		s.Read(reply)
		for _, r := range []*Statement{&s, &want} {
			slices.SortFunc(r.Holders, func(x, y Holder) int { return cmp.Compare(x.ID, y.ID) })
		}
		if s.Err != nil || fmt.Sprintf("%+v", s) != fmt.Sprintf("%+v", want) {
			t.Fatalf("step %d: %+v\nwant %+v", step, s, want)
		}
		if got := fields(ctx, t, client, s.Key); !maps.Equal(got, m.keys[s.Key]) {
			t.Fatalf("step %d: %v\nwant %v", step, got, m.keys[s.Key])
		}
	}
	return n
}

func scores(ctx context.Context, t *testing.T, client *redis.Client) map[string]int64 {
	all, err := client.ZRangeWithScores(ctx, "inst", 0, -1).Result()
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]int64)
	for _, z := range all {
		got[z.Member.(string)] = int64(z.Score)
	}
	return got
}

func fields(ctx context.Context, t *testing.T, client *redis.Client, key string) map[string]stored {
	all, err := client.HGetAll(ctx, key).Result()
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]stored)
	for id, value := range all {
		var n [5]int64
		for i, word := range strings.Split(value, ":") {
			n[i], _ = strconv.ParseInt(word, 10, 64)
		}
		got[id] = stored{Field{n[0], n[1]}, mark{n[2], n[3], n[4]}}
	}
	if ttl := client.TTL(ctx, key).Val(); len(all) > 0 && ttl < 24*time.Hour {
		t.Fatalf("key %s has a TTL of %v", key, ttl)
	}
	return got
}
