package envoy_test

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	commonpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	refconfig "github.com/envoyproxy/ratelimit/src/config"
	"github.com/envoyproxy/ratelimit/src/limiter"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/internal/redistest"
	"github.com/headgate/headgate/internal/redistest/proctest"
)

var (
	requests = flag.Int("requests", 6000, "how many random requests both services are asked")
	seed     = flag.Uint64("seed", 0, "of configurations and requests; 0: any")
)

// The differences that may be, by the first words of their row on the page.
const (
	differsWrong      = "what the caller did wrong"
	differsNegative   = "`is_negative_hits`"
	differsSize       = "size of a request"
	differsEntries    = "a descriptor without entries"
	differsQuota      = "`quota_mode`"
	differsMultiplier = "`unit_multiplier` of a limit of a request"
	differsZero       = "a limit of 0"
	differsHits       = "more than 2^63-1 hits"
	differsAmbiguous  = "keys and values with an underscore"
)

// notShown are the rows that no request of this test can show: with charge each, and while nothing is at fault.
var notShown = []string{
	"several limits of a request", "a hit that does not fit", "no decision", "a limit of a request with an unknown unit",
	"windows of two units that begin at one instant", "`duration_until_reset`", "a start with a faulty file", "an unknown key", "`limit_remaining` of a limit that is over", "metrics",
	"a header field in a descriptor that is not UTF-8", "the `limit` of a descriptor in the metadata of an answer", "two limits for one count in a request",
	"a known key in a wrong place", "tags in YAML, a key that is there twice, a second document", "numbers",
}

// Both services give the same answers, but for the differences on the page.
func TestDifferential(t *testing.T) {
	if *seed == 0 {
		*seed = rand.Uint64()
	}
	const each = 250
	domains := max(1, *requests/each)
	t.Logf("%d requests of %d domains: -seed %d", domains*each, domains, *seed)
	folder, units := filepath.Join(t.TempDir(), "config"), longEnough(time.Now())
	must(t, os.Mkdir(folder, 0o700))
	walks := make([]*walk, domains)
	for i := range walks {
		w := &walk{g: &generator{rand.New(rand.NewPCG(*seed, uint64(i))), units}, apart: make(map[string]string), of: make(map[string]string), huge: make(map[string]bool), found: make(map[string]int)}
		w.domain = w.g.configuration(fmt.Sprintf("domain-%d", i))
		must(t, os.WriteFile(filepath.Join(folder, w.domain.Domain+".yaml"), w.domain.text(), 0o600))
		var err error
		w.limits, err = load(false, string(w.domain.text()))
		must(t, err)
		walks[i] = w
	}
	redis := redistest.Start(t)
	ours := pb.NewRateLimitServiceClient(connect(t, proctest.Start(t, "each", redis.Addr(), folder, "127.0.0.1:0").Line()))
	theirs := pb.NewRateLimitServiceClient(connect(t, proctest.Start(t, "reference", redis.Addr(), folder).Line()))

	var group sync.WaitGroup
	next := make(chan *walk)
	for range 4 {
		group.Go(func() {
			for w := range next {
				w.run(t.Context(), each, ours, theirs)
			}
		})
	}
	for _, w := range walks {
		next <- w
	}
	close(next)
	group.Wait()
	found := make(map[string]int)
	for _, w := range walks {
		for name, n := range w.found {
			found[name] += n
		}
		if w.fault != "" && !t.Failed() {
			t.Errorf("%s\n%s", w.fault, w.domain.text())
		}
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		t.Logf("%6d times: %s", found[name], name)
	}
	checkRows(t, found, domains*each)
}

// checkRows compares the differences with the table of the page.
func checkRows(t *testing.T, found map[string]int, asked int) {
	text, err := os.ReadFile("../../docs/envoy.md")
	must(t, err)
	_, table, _ := strings.Cut(string(text), "\n## What differs\n")
	listed := make(map[string]bool)
	for line := range strings.Lines(table) {
		if cells := strings.Split(line, "|"); len(cells) == 5 {
			listed[strings.TrimSpace(cells[1])] = true
		}
	}
	known := append([]string{
		differsWrong, differsNegative, differsSize, differsEntries, differsQuota, differsMultiplier, differsZero, differsHits, differsAmbiguous,
	}, notShown...)
	for i, name := range known {
		if !listed[name] {
			t.Errorf("the page has no row %q", name)
		}
		if i < len(known)-len(notShown) && found[name] == 0 && asked >= 20_000 {
			t.Errorf("no request shows the difference %q", name)
		}
	}
	for name := range listed {
		if name != "" && strings.Trim(name, "-") != "" && !slices.Contains(known, name) {
			t.Errorf("the test does not know the difference %q of the page", name)
		}
	}
}

// A walk asks about one domain.
type walk struct {
	g      *generator
	domain *configuration
	limits refconfig.RateLimitConfig // what the reference finds for a descriptor
	apart  map[string]string         // its counters that differ from ours, and by which difference
	of     map[string]string         // whom each counts
	huge   map[string]bool           // its counters that may be beyond what Redis can count to
	found  map[string]int
	fault  string
}

func (w *walk) run(ctx context.Context, n int, ours, theirs pb.RateLimitServiceClient) {
	for i := range n {
		q := w.g.request(w.domain)
		begin := time.Now()
		a, errA := ours.ShouldRateLimit(ctx, q)
		b, errB := theirs.ShouldRateLimit(ctx, q)
		if w.fault = w.compare(q, answer{a, errA}, answer{b, errB}, time.Since(begin)); w.fault != "" {
			w.fault = fmt.Sprintf("request %d of %s: %s\n%v\nours:   %v %v\ntheirs: %v %v", i, w.domain.Domain, w.fault, q, a, errA, b, errB)
			return
		}
	}
}

type answer struct {
	*pb.RateLimitResponse

	err error
}

// compare returns the difference of two answers that is not listed, or none. They were given within that time.
func (w *walk) compare(q *pb.RateLimitRequest, ours, theirs answer, within time.Duration) string {
	overflows := w.overflows(q)
	if why, both := wrong(q); why != "" {
		code := status.Code(ours.err)
		switch {
		case code != codes.InvalidArgument:
			return "ours is not refused: " + why
		case both != (status.Code(theirs.err) == codes.Unknown) && !overflows:
			return "theirs has another error: " + why
		}
		w.found[why]++
		for i := range q.GetDescriptors() {
			w.counter(q, i, why)
		}
		return ""
	}
	if overflows && ours.err == nil && theirs.err != nil {
		w.found[differsHits]++
		for i := range q.GetDescriptors() {
			w.counter(q, i, differsHits)
		}
		return ""
	}
	if ours.err != nil || theirs.err != nil {
		return "an error"
	}
	if len(ours.GetStatuses()) != len(theirs.GetStatuses()) {
		return "other statuses"
	}
	same := true
	for i, a := range ours.GetStatuses() {
		b := theirs.GetStatuses()[i]
		why := w.differs(q, i, b)
		if text := compareStatus(a, b, within); text != "" {
			if why == "" {
				return fmt.Sprintf("descriptors[%d] has another %s", i, text)
			}
			w.found[why]++
			same = false
		}
	}
	if same && ours.GetOverallCode() != theirs.GetOverallCode() || !same && ours.GetOverallCode() != w.overall(q, ours) {
		return "another overall code"
	}
	return ""
}

// wrong returns why our service refuses a request, and whether the reference does so too.
func wrong(q *pb.RateLimitRequest) (why string, both bool) {
	switch {
	case q.GetDomain() == "", len(q.GetDescriptors()) == 0:
		return differsWrong, true
	case len(q.GetDescriptors()) > 256:
		return differsSize, false
	}
	for _, d := range q.GetDescriptors() {
		text := 0
		for _, e := range d.GetEntries() {
			text += len(e.GetKey()) + len(e.GetValue())
		}
		switch {
		case len(d.GetEntries()) == 0:
			return differsEntries, false
		case text > 4<<10:
			return differsSize, false
		case d.GetIsNegativeHits():
			return differsNegative, false
		}
	}
	return "", false
}

// Some such numbers together are beyond what Redis can count to.
const huge = 1 << 60

// hits returns the hits of a descriptor.
func hits(q *pb.RateLimitRequest, d *commonpb.RateLimitDescriptor) uint64 {
	if own := d.GetHitsAddend(); own != nil {
		return own.GetValue()
	}
	return uint64(max(q.GetHitsAddend(), 1))
}

// overflows reports whether a request may take a counter of the reference beyond what Redis can count to.
func (w *walk) overflows(q *pb.RateLimitRequest) (may bool) {
	for i, d := range q.GetDescriptors() {
		if key := w.key(q, i); key != "" && (hits(q, d) >= huge || w.huge[key]) {
			w.huge[key], may = true, true
		}
	}
	return may
}

// key returns the counter that the reference has for a descriptor, or none.
func (w *walk) key(q *pb.RateLimitRequest, i int) string {
	d := q.GetDescriptors()[i]
	limit := w.limits.GetLimit(context.Background(), q.GetDomain(), d)
	if limit == nil || limit.Unlimited {
		return ""
	}
	g := limiter.NewCacheKeyGenerator("")
	return g.GenerateCacheKey(q.GetDomain(), d, limit, time.Now().Unix()).Key
}

// counter notes that the counter of a descriptor differs from ours from now on, unless it did before.
func (w *walk) counter(q *pb.RateLimitRequest, i int, why string) {
	if key := w.key(q, i); key != "" && w.apart[key] == "" {
		w.apart[key] = why
	}
}

// differs returns why the status of a descriptor may be another than the reference's, which is given, or "".
func (w *walk) differs(q *pb.RateLimitRequest, i int, theirs *pb.RateLimitResponse_DescriptorStatus) string {
	d := q.GetDescriptors()[i]
	limit, key := w.limits.GetLimit(context.Background(), q.GetDomain(), d), w.key(q, i)
	if key == "" || theirs.GetCurrentLimit() == nil {
		return "" // nothing counts
	}
	whom := limit.Limit.GetUnit().String()
	for j, e := range d.GetEntries() {
		value := e.GetValue()
		if p := limit.ShareThresholdKeyPattern; p != nil && p[j] != "" {
			value = p[j]
		}
		whom += fmt.Sprintf(" %q=%q", e.GetKey(), value)
	}
	if before, there := w.of[key]; there && before != whom {
		w.counter(q, i, differsAmbiguous)
	}
	w.of[key] = whom
	if len(d.GetLimit().ProtoReflect().GetUnknown()) > 0 {
		w.counter(q, i, differsMultiplier)
		return differsMultiplier
	}
	zero := limit.Limit.GetRequestsPerUnit() == 0
	if zero && hits(q, d) > 0 {
		w.counter(q, i, differsZero)
	}
	switch why := w.apart[key]; {
	case w.huge[key]:
		return differsHits
	case zero && hits(q, d) == 0:
		return differsZero
	case why != "" && !zero:
		return why
	case limit.QuotaMode:
		return differsQuota
	}
	return ""
}

// overall returns the code that a request has by our statuses.
func (w *walk) overall(q *pb.RateLimitRequest, ours answer) pb.RateLimitResponse_Code {
	quotas, over := 0, 0
	for i, st := range ours.GetStatuses() {
		limit := w.limits.GetLimit(context.Background(), q.GetDomain(), q.GetDescriptors()[i])
		refused := st.GetCode() == pb.RateLimitResponse_OVER_LIMIT
		switch {
		case limit != nil && limit.QuotaMode && st.GetCurrentLimit() != nil: // not one that was replaced, or is unlimited
			if quotas++; refused {
				over++
			}
		case refused:
			return pb.RateLimitResponse_OVER_LIMIT
		}
	}
	if quotas > 0 && quotas == over {
		return pb.RateLimitResponse_OVER_LIMIT
	}
	return pb.RateLimitResponse_OK
}

// compareStatus returns what differs of two statuses, or "". The time until the limit is as new has passed between them,
// and is of whole seconds.
func compareStatus(a, b *pb.RateLimitResponse_DescriptorStatus, within time.Duration) string {
	l, m := a.GetCurrentLimit(), b.GetCurrentLimit()
	later := b.GetDurationUntilReset().AsDuration() - a.GetDurationUntilReset().AsDuration()
	switch {
	case a.GetCode() != b.GetCode():
		return "code"
	case (l == nil) != (m == nil), l.GetRequestsPerUnit() != m.GetRequestsPerUnit(), l.GetUnit() != m.GetUnit(), l.GetName() != m.GetName(),
		len(l.ProtoReflect().GetUnknown()) != len(m.ProtoReflect().GetUnknown()):
		return "current_limit"
	case a.GetLimitRemaining() != b.GetLimitRemaining():
		return "limit_remaining"
	case later < -within-time.Second, later > time.Second:
		return "duration_until_reset"
	}
	return ""
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
