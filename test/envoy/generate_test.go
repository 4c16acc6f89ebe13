package envoy_test

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"strings"
	"time"

	commonpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/envoyproxy/ratelimit/src/utils"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// A configuration is the file of a domain, in JSON, which is YAML too.
type configuration struct {
	Domain      string        `json:"domain"`
	Descriptors []*configured `json:"descriptors"`
}

// configured is a descriptor of a configuration.
type configured struct {
	Key            string        `json:"key"`
	Value          string        `json:"value,omitempty"`
	RateLimit      *rateLimit    `json:"rate_limit,omitempty"`
	Descriptors    []*configured `json:"descriptors,omitempty"`
	ShadowMode     bool          `json:"shadow_mode,omitempty"`
	QuotaMode      bool          `json:"quota_mode,omitempty"`
	DetailedMetric bool          `json:"detailed_metric,omitempty"`
	ValueToMetric  bool          `json:"value_to_metric,omitempty"`
	ShareThreshold bool          `json:"share_threshold,omitempty"`
}

type rateLimit struct {
	Unit            string     `json:"unit,omitempty"`
	RequestsPerUnit uint32     `json:"requests_per_unit"`
	Unlimited       bool       `json:"unlimited,omitempty"`
	Name            string     `json:"name,omitempty"`
	Replaces        []replaced `json:"replaces,omitempty"`
}

type replaced struct {
	Name string `json:"name"`
}

// longEnough returns the units whose windows do not end within the next 20 minutes. No two of them have begun at the
// same instant, because the reference counts such windows together.
func longEnough(now time.Time) (units []pb.RateLimitResponse_RateLimit_Unit) {
	begun := make(map[int64]bool)
	for _, unit := range []pb.RateLimitResponse_RateLimit_Unit{
		pb.RateLimitResponse_RateLimit_HOUR, pb.RateLimitResponse_RateLimit_DAY, pb.RateLimitResponse_RateLimit_WEEK,
		pb.RateLimitResponse_RateLimit_MONTH, pb.RateLimitResponse_RateLimit_YEAR,
	} {
		seconds := utils.UnitToDivider(unit)
		into := now.Unix() % seconds
		if begin := now.Unix() - into; seconds-into > 20*60 && !begun[begin] {
			begun[begin] = true
			units = append(units, unit)
		}
	}
	return units
}

// A generator makes random configurations and requests.
type generator struct {
	*rand.Rand

	units []pb.RateLimitResponse_RateLimit_Unit
}

// one returns one of several.
func one[T any](g *generator, of ...T) T { return of[g.IntN(len(of))] }

// often reports true so many times of a thousand.
func (g *generator) often(n int) bool { return g.IntN(1000) < n }

func (g *generator) configuration(domain string) *configuration {
	return &configuration{domain, g.level(1)}
}

func (g *generator) level(depth int) (all []*configured) {
	there := make(map[string]bool)
	for range 1 + g.IntN(6) {
		d := &configured{Key: one(g, "a", "b", "c", "a_b"), Value: one(g, "", "", "x", "y", "b_x", "x*", "xy*", "*")}
		if g.often(40) {
			d.Key, d.Value = one(g, "a*", "b*"), ""
		}
		text := d.Key
		if d.Value != "" {
			text += "_" + d.Value
		}
		if there[text] {
			continue
		}
		there[text] = true
		d.ShadowMode, d.QuotaMode, d.DetailedMetric, d.ValueToMetric = g.often(100), g.often(120), g.often(100), g.often(150)
		d.ShareThreshold = strings.HasSuffix(text, "*") && g.often(400)
		if g.often(800) {
			d.RateLimit = g.rate()
		}
		if depth < 3 && g.often(400) {
			d.Descriptors = g.level(depth + 1)
		}
		all = append(all, d)
	}
	return all
}

func (g *generator) rate() *rateLimit {
	r := &rateLimit{RequestsPerUnit: one[uint32](g, 0, 1, 2, 5, 20, 100, math.MaxUint32)}
	if g.often(100) {
		r.Unlimited = true
	} else {
		r.Unit = strings.ToLower(one(g, g.units...).String())
		if r.Unit == "hour" { // above an eighth of its microseconds, a window is kept in another form: then limits of requests do not share its count
			r.RequestsPerUnit = min(r.RequestsPerUnit, 400_000_000)
		}
	}
	names := []string{"n", "o", "p"}
	if g.often(500) {
		r.Name = one(g, names...)
	}
	if name := one(g, names...); g.often(150) && name != r.Name {
		r.Replaces = []replaced{{name}}
	}
	return r
}

// request returns a request, of which most match something.
func (g *generator) request(c *configuration) *pb.RateLimitRequest {
	q := &pb.RateLimitRequest{Domain: c.Domain, HitsAddend: one[uint32](g, 0, 0, 0, 0, 1, 2, 7)}
	n := one(g, 1, 1, 1, 2, 2, 3, 5)
	switch {
	case g.often(2):
		q.Domain = ""
	case g.often(5):
		q.Domain += "-unknown"
	case g.often(2):
		n = 0
	case g.often(3):
		n = 60 + g.IntN(220)
	case g.often(5):
		q.HitsAddend = math.MaxUint32
	}
	for range n {
		q.Descriptors = append(q.Descriptors, g.descriptor(c, n))
	}
	return q
}

func (g *generator) descriptor(c *configuration, among int) *commonpb.RateLimitDescriptor {
	d := &commonpb.RateLimitDescriptor{Entries: g.entries(c)}
	if among > 10 {
		return d // what follows is rare for the request
	}
	if g.often(200) {
		d.HitsAddend = wrapperspb.UInt64(one[uint64](g, 0, 0, 0, 1, 3, 10, 1<<33))
	}
	if g.often(120) {
		d.Limit = &commonpb.RateLimitDescriptor_RateLimitOverride{
			RequestsPerUnit: one[uint32](g, 0, 1, 3, 10, 50), Unit: typev3.RateLimitUnit(one(g, g.units...)), // the numbers are the same
		}
		if g.often(30) {
			inner := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), uint64(2+g.IntN(5)))
			d.GetLimit().ProtoReflect().SetUnknown(protowire.AppendBytes(protowire.AppendTag(nil, 3, protowire.BytesType), inner))
		}
	}
	switch {
	case g.often(2):
		d.HitsAddend = wrapperspb.UInt64(one[uint64](g, 1<<60, 1<<63, math.MaxUint64))
	case g.often(2):
		d.IsNegativeHits = true
	case g.often(1):
		d.Entries = nil
	case g.often(1):
		d.Entries[0].Value = strings.Repeat("x", 5000)
	}
	return d
}

// entries follow the configuration, and then go anywhere.
func (g *generator) entries(c *configuration) (all []*commonpb.RateLimitDescriptor_Entry) {
	level := c.Descriptors
	for len(level) > 0 && (len(all) == 0 || g.often(700)) {
		d := one(g, level...)
		e := &commonpb.RateLimitDescriptor_Entry{Key: d.Key, Value: d.Value}
		if d.Value == "" {
			e.Value = one(g, "", "v", "w", "x", "xyz")
		}
		if wild, is := strings.CutSuffix(d.Value, "*"); is && g.often(970) {
			e.Value = wild + one(g, "", "1", "2", "y", "yz")
		}
		if wild, is := strings.CutSuffix(d.Key, "*"); is {
			e.Key = wild + one(g, "", "1", "2")
		}
		all, level = append(all, e), d.Descriptors
	}
	for len(all) == 0 || g.often(80) {
		all = append(all, &commonpb.RateLimitDescriptor_Entry{Key: one(g, "a", "b", "c", "a_b", "d"), Value: one(g, "", "x", "xy", "y", "b_x", "1")})
	}
	return all
}

// text returns the file of a configuration.
func (c *configuration) text() []byte {
	text, err := json.MarshalIndent(c, "", " ")
	if err != nil {
		panic(err)
	}
	return text
}

// descriptor returns a descriptor of a key and a value.
func descriptor(key, value string) *commonpb.RateLimitDescriptor {
	return &commonpb.RateLimitDescriptor{Entries: []*commonpb.RateLimitDescriptor_Entry{{Key: key, Value: value}}}
}

// ask returns a request.
func ask(domain string, hits uint32, of ...*commonpb.RateLimitDescriptor) *pb.RateLimitRequest {
	return &pb.RateLimitRequest{Domain: domain, HitsAddend: hits, Descriptors: of}
}
