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
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/redistest"
)

// The model that the simulation runs, and the scripts, do the same.
func TestScriptsAgreeWithTheModel(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long, and has nothing for the race detector, whose runs are short")
	}
	for name, addr := range map[string]string{
		"Redis":     redistest.Start(t).Addr(),
		"miniredis": miniredis.RunT(t).Addr(),
	} {
		t.Run(name, func(t *testing.T) {
			client := redis.NewClient(&redis.Options{Addr: addr})
			defer client.Close()
			for seed := range uint64(12) {
				differ(t, client, rand.New(rand.NewPCG(seed, 1)))
				if err := client.FlushAll(t.Context()).Err(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

func differ(t *testing.T, client *redis.Client, rng *rand.Rand) {
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
		if rng.IntN(3) == 0 {
			now += rng.Int64N(3_000_000) - 500_000
			if rng.IntN(40) == 0 {
				now += 100 * 3600_000_000
			}
			b := &Beat{
				ID: ids[rng.IntN(len(ids))], New: ids[rng.IntN(len(ids))], TTL: 3 * time.Second, Step: time.Second,
				Bury: some(), Seen: some(),
			}
			if rng.IntN(3) == 0 {
				b.ID = ""
			}
			if rng.IntN(3) == 0 {
				b.New = ""
			}
			if rng.IntN(4) == 0 {
				b.Replaces = "a."
			}
			if rng.IntN(50) == 0 {
				b.Step = 30 * time.Hour // tombstones come to their end
			}
			want := *b
			m.beat(now, &want)
			text, err := client.Eval(ctx, BeatScript, []string{"inst"}, b.Args(strconv.FormatInt(now, 10))...).Text()
			if err != nil {
				t.Fatal(err)
			}
			if err := b.Read(text); err != nil {
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
		op := Op{
			Key: strconv.Itoa(rng.IntN(3)), ID: ids[rng.IntN(len(ids))], Seq: 1 + rng.Int64N(int64(step+2)), Held: rng.Int64N(4),
			Keep: rng.IntN(2) == 0, ListAll: rng.IntN(2) == 0, Drop: some(),
		}
		if rng.IntN(2) == 0 {
			op.Want, op.Limit = rng.Int64N(4), rng.Int64N(40)
			if rng.IntN(3) == 0 {
				op.Want = -rng.Int64N(op.Held + 1)
			}
		}
		op.Waits = Waits(rng.IntN(4))
		m.now = now + rng.Int64N(1_000_000)
		op.Instant = strconv.FormatInt(m.now, 10)
		op.Drop = slices.DeleteFunc(op.Drop, func(id string) bool { return id == op.ID })
		want := op
		want.Reply = m.state(op.Key, &want)
		text, err := client.Eval(ctx, SlotsScript, []string{op.Key}, op.Args()...).Text()
		if err != nil {
			t.Fatal(err)
		}
		op.Read(text)
		for _, r := range []*Reply{&op.Reply, &want.Reply} {
			slices.SortFunc(r.Fields, func(x, y Field) int { return cmp.Compare(x.ID, y.ID) })
		}
		if op.Err != nil || !reflect.DeepEqual(op.Reply, want.Reply) {
			t.Fatalf("step %d: %+v\nwant %+v", step, op, want)
		}
		if got := fields(ctx, t, client, op.Key); !maps.Equal(got, m.keys[op.Key]) {
			t.Fatalf("step %d: %v\nwant %v", step, got, m.keys[op.Key])
		}
	}
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

func fields(ctx context.Context, t *testing.T, client *redis.Client, key string) map[string]Field {
	all, err := client.HGetAll(ctx, key).Result()
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]Field)
	for id, value := range all {
		f, err := ReadField(id, value)
		if err != nil {
			t.Fatal(err)
		}
		got[id] = f
	}
	if ttl := client.TTL(ctx, key).Val(); len(all) > 0 && ttl < 24*time.Hour {
		t.Fatalf("key %s has a TTL of %v", key, ttl)
	}
	return got
}
