package headgated_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/headgate/headgate/headgated"
	"github.com/headgate/headgate/internal/redistest"
)

// modelled are the limits of the model: their windows do not end.
var modelled = map[string]struct {
	limit                  int64
	shadow, quota, endless bool
	text                   string
}{
	"a":  {limit: 10, text: "rate_limit: {unit: year, requests_per_unit: 10}"},
	"b":  {limit: 12, text: "rate_limit: {unit: year, requests_per_unit: 12}"},
	"c":  {limit: 14, text: "headgate: {policy: sliding-window 14/365d}"},
	"w":  {limit: 5, shadow: true, text: "shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 5}"},
	"q1": {limit: 6, quota: true, text: "quota_mode: true, rate_limit: {unit: year, requests_per_unit: 6}"},
	"q2": {limit: 8, quota: true, text: "quota_mode: true, rate_limit: {unit: year, requests_per_unit: 8}"},
	"qs": {limit: 4, quota: true, shadow: true, text: "quota_mode: true, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 4}"},
	"qu": {quota: true, endless: true, text: "quota_mode: true, rate_limit: {unlimited: true}"},
}

// A modelItem is a descriptor of a request.
type modelItem struct {
	key, id string // one of modelled; key=value
	hits    int64
	own     bool // the hits are the descriptor's own, and have happened
}

// A model has the used units of each key=value.
type model map[string]int64

func (m model) fits(it modelItem, n int64) bool { return m[it.id]+n <= modelled[it.key].limit }

// ask charges all or none, then what is counted anyway, then quotas. It reports whether the request is refused.
func (m model) ask(items []modelItem) (refused bool) {
	together := make(map[string]int64)
	quotas, over := 0, 0 // of limits in quota mode: all, and those that are over
	for _, it := range items {
		if l := modelled[it.key]; !l.endless && !l.quota && !l.shadow && !it.own {
			together[it.id] += it.hits
			refused = refused || !m.fits(it, together[it.id])
		}
	}
	charged := !refused
	for id, n := range together {
		if charged {
			m[id] += n
		}
	}
	for _, it := range items {
		l := modelled[it.key]
		if l.quota && !l.shadow {
			quotas++
		}
		if l.endless || !it.own && !l.shadow {
			continue
		}
		fits := m.fits(it, it.hits)
		m[it.id] += it.hits
		switch {
		case fits || l.shadow:
		case l.quota:
			over++
		default:
			refused = true
		}
	}
	refused = refused || quotas > 0 && over == quotas
	for _, it := range items {
		l := modelled[it.key]
		switch {
		case l.endless || !l.quota || l.shadow || it.own:
		case !m.fits(it, it.hits):
			over++
		case !refused:
			m[it.id] += it.hits
		}
	}
	refused = refused || quotas > 0 && over == quotas
	for id, n := range together {
		if charged && refused {
			m[id] -= n
		}
	}
	return refused
}

// Random requests are answered, and charged, as the model says, whatever limits in shadow mode, quotas, checks and
// reported hits they mix.
func TestModelOfCharging(t *testing.T) {
	var rules strings.Builder
	keys := make([]string, 0, len(modelled))
	for key, l := range modelled {
		keys = append(keys, key)
		fmt.Fprintf(&rules, "  - {key: %s, %s}\n", key, l.text)
	}
	slices.Sort(keys)
	for name, config := range map[string]headgated.Config{
		"memory": {}, "Redis": {Redis: "redis://" + redistest.Start(t).Addr(), Timeout: 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			config.Document = source("rls:\n- domain: d\n  descriptors:\n" + rules.String())
			_, conn := serveRLS(t, config)
			c := pb.NewRateLimitServiceClient(conn)
			ask := func(q *pb.RateLimitRequest) *pb.RateLimitResponse {
				q.Domain = "d"
				r, err := c.ShouldRateLimit(t.Context(), q)
				must(t, err)
				return r
			}
			rng := rand.New(rand.NewPCG(1, 2))
			for round := range 300 {
				m, story := make(model), ""
				for range 1 + rng.IntN(8) {
					var items []modelItem
					q := &pb.RateLimitRequest{HitsAddend: uint32(rng.IntN(4))}
					for range 1 + rng.IntN(5) {
						key := keys[rng.IntN(len(keys))]
						it := modelItem{key: key, id: fmt.Sprintf("%s=%d-%d", key, round, rng.IntN(2)), hits: int64(max(q.GetHitsAddend(), 1))}
						of := d(it.id)
						if rng.IntN(4) == 0 {
							it.hits = int64(rng.IntN(4))
							it.own, of = it.hits > 0, hits(uint64(it.hits), it.id)
						}
						items, q.Descriptors = append(items, it), append(q.GetDescriptors(), of)
					}
					r := ask(q)
					story += fmt.Sprintln(items, summary(r))
					if want := m.ask(items); want != (r.GetOverallCode() == pb.RateLimitResponse_OVER_LIMIT) {
						t.Fatalf("refused is not %v\n%s", want, story)
					}
				}
				for id, used := range m {
					l := modelled[strings.Split(id, "=")[0]]
					left := ask(&pb.RateLimitRequest{Descriptors: ds{hits(0, id)}}).GetStatuses()[0].GetLimitRemaining()
					if want := max(l.limit-used, 0); !l.endless && int64(left) != want {
						t.Fatalf("%s: %d left, not %d\n%s", id, left, want, story)
					}
				}
			}
		})
	}
}
