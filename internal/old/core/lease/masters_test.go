package lease

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/bubble"
	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/internal/remote"
	"github.com/headgate/headgate/internal/old/core/store"
	"github.com/headgate/headgate/internal/old/core/storetest/reference"
)

// masters are two masters of a Cluster, for keys that begin with a and with b.
type masters struct {
	mu   sync.Mutex
	both [2]*reference.Store
}

func masterOf(key string) int { return int(key[0] - 'a') }

func (*masters) Prepare(*store.Limiter) error { return nil }

func (*masters) Observer() *store.Observer { return nil }

func (m *masters) Ask(ctx context.Context, q *store.Question) error {
	time.Sleep(time.Millisecond)
	m.mu.Lock()
	defer m.mu.Unlock()
	if q.Mode != store.Settle {
		return m.both[masterOf(q.Charges[0].Key)].Ask(ctx, q)
	}
	for i := range q.Charges { // of any keys
		one := &store.Question{Mode: q.Mode, Charges: q.Charges[i : i+1]}
		if err := m.both[masterOf(one.Charges[0].Key)].Ask(ctx, one); err != nil {
			return err
		}
	}
	return nil
}

// The clocks of two masters differ. Keys of both are leased together, and each lease ends by the clock of its
// own master. What is given back is missing nowhere.
func TestLeasesOfMastersWithOtherClocks(t *testing.T) {
	for _, ahead := range []time.Duration{0, 20 * time.Millisecond, 300 * time.Millisecond, -300 * time.Millisecond} {
		t.Run(ahead.String(), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				const limit = 1000
				clock := func() time.Time { return time.Now().Add(ahead) } // of the second
				m := new(masters)
				m.both[0] = reference.New(func() int64 { return time.Now().UnixMicro() })
				m.both[1] = reference.New(func() int64 { return clock().UnixMicro() })
				cluster := remote.NewInTurn(m, masterOf, time.Second)
				s, err := New(cluster, Config{})
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close(context.Background())
				wide := named(t, s, "wide", core.FixedWindow(core.PerSecond(100*limit)))
				policy := core.FixedWindow(core.PerSecond(limit))
				narrow, elsewhere := named(t, s, "narrow", policy), named(t, cluster, "narrow", policy)
				admitted, local, all := make(map[int64]int64), 0, 0 // in each window of the second master
				start, seized := clock().Unix(), int64(0)
				for clock().Unix() < start+10 {
					now := clock()
					gap := 1100 * time.Microsecond
					if now.Unix()%4 < 2 {
						gap = 400 * time.Microsecond // more than the limit
					}
					d := together(t, core.Charge{Limiter: wide, Key: "a", N: 1}, core.Charge{Limiter: narrow, Key: "b", N: 1})
					if all++; d.Allowed {
						admitted[clock().Unix()]++
					}
					if d.Source == core.SourceLease {
						local++
					}
					// Another process takes all that is left, late in each second window.
					if now = clock(); now.Unix()%2 == 1 && now.Unix() != seized && now.Nanosecond() > 600e6 {
						seized = now.Unix()
						for n := int64(limit); n > 0; n /= 2 {
							if d, err := elsewhere.AllowN(t.Context(), "b", n); err == nil && d.Allowed {
								admitted[clock().Unix()] += n
							}
						}
					}
					time.Sleep(gap)
				}
				for second := start; second < start+10; second++ {
					n := admitted[second]
					if n > limit+1 { // one may be charged in a window and answered in the next
						t.Errorf("%d admitted in a window under %d", n, limit)
					}
					if second > start && n < limit*8/10 {
						t.Errorf("only %d admitted in a window", n)
					}
				}
				if local < all*9/10 {
					t.Errorf("only %d of %d were decided here", local, all)
				}
			})
		})
	}
}
