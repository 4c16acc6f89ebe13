package headgated

import (
	lru "container/list"
	"errors"
	"math"
	"strconv"
	"strings"
	"sync"

	commonpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/headgate/headgate/internal/backend"
)

// override applies the limit that a descriptor brings. It has the counter of its rule if the unit is the
// same, and one of its own if not. As in the reference, it is in no mode, and replaces nothing.
func (s *Server) override(d *domain, entries []entry, o *commonpb.RateLimitDescriptor_RateLimitOverride, to *item) error {
	unit := pb.RateLimitResponse_RateLimit_Unit(o.GetUnit())
	several, err := multiplier(o, ofOverride)
	if err != nil || window(unit) == 0 {
		return invalid("a limit has a unit that there is not, or a multiplier that is not valid")
	}
	keys := []string{d.name}
	for _, e := range entries {
		keys = append(keys, e.key)
	}
	name, policy := limiterName(append([]string{""}, keys...)...), shown(strings.Join(keys, ".")) // no domain is empty
	if before := to.rule; before != nil {
		name, policy = before.id, before.shown()
	}
	if to.rule == nil || unit != to.unit || several != 1 {
		name = limiterName("", "", unit.String(), strconv.FormatUint(uint64(several), 10), name)
	}
	to.rule, to.several = &rule{}, several // without a mode, and a name that others replace
	to.current = &pb.RateLimitResponse_RateLimit{RequestsPerUnit: o.GetRequestsPerUnit(), Unit: unit}
	setMultiplier(to.current, ofLimit, several)
	to.limiter, err = s.overrides.get(s.store, overrideOf{name, policy, o.GetRequestsPerUnit(), unit, several})
	if err != nil {
		return invalid("a limit cannot be counted: its window is too long, or its number too large")
	}
	return nil
}

var errMultiplier = errors.New("the multiplier is not valid")

// The fields of multipliers, which descriptions of before envoy 1.40 do not have. Each is a UInt32Value: how many units
// make the window.
const (
	ofOverride protowire.Number = 3
	ofLimit    protowire.Number = 4
)

// multiplier returns the multiplier of an override or a limit, from the bytes. It is 1 if it is not there.
func multiplier(of proto.Message, field protowire.Number) (n uint32, err error) {
	n = 1
	message, err := proto.Marshal(of)
	if err != nil {
		return 0, err
	}
	err = eachField(message, func(number protowire.Number, kind protowire.Type, value []byte) error {
		if number != field || kind != protowire.BytesType {
			return nil
		}
		inner, _ := protowire.ConsumeBytes(value)
		n = 0
		return eachField(inner, func(number protowire.Number, kind protowire.Type, value []byte) error {
			if number == 1 && kind == protowire.VarintType {
				v, _ := protowire.ConsumeVarint(value)
				n = uint32(v)
			}
			return nil
		})
	})
	if err == nil && n == 0 {
		err = errMultiplier
	}
	return n, err
}

// eachField calls f with each field of an encoded message.
func eachField(message []byte, f func(number protowire.Number, kind protowire.Type, value []byte) error) error {
	for len(message) > 0 {
		number, kind, length := protowire.ConsumeTag(message)
		if length < 0 {
			return protowire.ParseError(length)
		}
		message = message[length:]
		if length = protowire.ConsumeFieldValue(number, kind, message); length < 0 {
			return protowire.ParseError(length)
		}
		if err := f(number, kind, message[:length]); err != nil {
			return err
		}
		message = message[length:]
	}
	return nil
}

// setMultiplier sets the multiplier of an override or a limit, whether its description has it or not. 1 is left out.
func setMultiplier(of proto.Message, field protowire.Number, n uint32) {
	if n == 1 {
		return
	}
	one := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), uint64(n))
	message := protowire.AppendBytes(protowire.AppendTag(nil, field, protowire.BytesType), one)
	_ = proto.UnmarshalOptions{Merge: true}.Unmarshal(message, of) // it is valid
}

// An overrideOf is what tells limiters of overrides from each other.
type overrideOf struct {
	name    string // of the limiter
	shown   string // of the policy
	n       uint32
	unit    pb.RateLimitResponse_RateLimit_Unit
	several uint32
}

// overrides are the limiters of limits that requests bring: the ones that were used last.
type overrides struct {
	mu     sync.Mutex
	byWhat map[overrideOf]*lru.Element
	used   lru.List // of *override, the last used first
}

type override struct {
	overrideOf

	limiter *backend.Limiter
}

// maxOverrides bounds the memory for limits that requests bring.
const maxOverrides = 1024

// get returns the limiter of an override.
func (o *overrides) get(s *backend.Store, of overrideOf) (*backend.Limiter, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if e := o.byWhat[of]; e != nil {
		o.used.MoveToFront(e)
		return e.Value.(*override).limiter, nil
	}
	if int64(of.several) > math.MaxInt64/int64(window(of.unit)) {
		return nil, errMultiplier
	}
	l, err := newLimiter(s, of.name, perUnitOf(of.n, of.unit, of.several, of.shown))
	if err != nil {
		return nil, err
	}
	if o.byWhat == nil {
		o.byWhat = make(map[overrideOf]*lru.Element)
	}
	o.byWhat[of] = o.used.PushFront(&override{of, l})
	if o.used.Len() > maxOverrides {
		last := o.used.Back()
		o.used.Remove(last)
		delete(o.byWhat, last.Value.(*override).overrideOf)
	}
	return l, nil
}
