package websocketmw

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
	"github.com/headgate/headgate/websocketmw/internal/frames"
)

// Config is what a [Guard] does. The zero Config limits only control frames. Its functions are called by many
// goroutines at once.
type Config struct {
	_ struct{} // literals must name the fields

	// Rules limit how many sockets a key has at once. There are at most 8, of slots with different names. A socket
	// takes a slot of each, or none.
	Rules []Rule

	// Messages limits how many messages clients send. A message counts when it begins, whatever its size and
	// however many fragments it has: limit Bytes, too, or set the library's largest message.
	// golang.org/x/net/websocket hands each fragment to the handler as a message of its own.
	Messages []Inbound

	// Bytes limits how many bytes of messages clients send. They count as they arrive, before they are
	// decompressed. An empty frame counts as one byte.
	Bytes []Inbound

	// MaxIdle closes a socket with 1001 when nothing was read from it for this long. Pongs count, so let the handler
	// send pings more often than that; it must read, too. MaxIdle finds clients that have vanished behind a proxy which
	// keeps the connection open. 0 means never.
	MaxIdle time.Duration

	// MaxAge closes a socket with 1001 when it is this old, or, at random, up to a tenth younger. So sockets that were
	// opened together are not closed together. 0 means never.
	MaxAge time.Duration

	// Drain is the time over which [Guard.Shutdown] closes sockets, the oldest first, so that their clients do not
	// all come to the other servers at once. 0 means all at once.
	Drain time.Duration

	// OnRefused answers an upgrade that is refused. The header has its fields already. If OnRefused writes nothing,
	// the guard answers.
	OnRefused func(http.ResponseWriter, *http.Request, *nethttp.Verdict)

	// OnClosed is called once for each socket, also for one whose handler has not upgraded, when its connection is
	// closed and its slots are released. The error is nil if the client, the handler, [Socket.Close] or
	// [Guard.CloseAll] has closed it. Otherwise it wraps ErrIdle, ErrAged, ErrShutdown, ErrProtocol, ErrFlood or
	// ErrEvicted. Shutdown waits for OnClosed.
	OnClosed func(*Socket, error)

	// Logger gets faults of configuration, such as requests without a key, at level WARN: each once a minute at most,
	// and none with a key in it. Nil means [slog.Default].
	Logger *slog.Logger
}

// A Rule limits how many sockets a key has at once.
type Rule struct {
	_ struct{} // literals must name the fields

	// Slots count the sockets. Required.
	Slots *core.Slots

	// Key is whom the rule counts. A request without a key is refused with 400. Required.
	Key keyfuncs.Func

	// Plan is the plan of the Slots that applies to the upgrade; sockets that are open stay open. If it is nil,
	// absent or unknown to the Slots, that is the default.
	Plan keyfuncs.Func

	// WhenFull is what happens to an upgrade whose key has no slot left. The zero value is Refuse.
	WhenFull WhenFull
}

// WhenFull is what happens to an upgrade whose key has no slot left.
type WhenFull int

const (
	// Refuse refuses the upgrade with 429.
	Refuse WhenFull = iota

	// Unavailable refuses it with 503, and clients do not see the limit: it is one of the service, not of the client.
	Unavailable

	// EvictOldest admits the upgrade, and closes the oldest socket of the key with 1008 and ErrEvicted, on whichever
	// server it is. So a user whose devices have all vanished can connect again. One rule of a guard may have it. Use
	// it only for keys of one person: whoever shares the key can close the sockets of all others.
	//
	// A socket is not evicted in its first 10 seconds. If no socket of the key is older, or another newcomer is just
	// taking the place of one, the upgrade is refused with 429 and a Retry-After of 5 to 10 seconds.
	//
	// The search for the oldest socket takes at most a second; a server that has not answered by then is left out.
	// The oldest is closed when the 101 of the newcomer has been written. So a handshake that the handler refuses
	// evicts nobody, and neither does one whose client has left before the 101. The evicted socket gives up its slot at
	// once. If its server does not confirm that within 2 seconds, the newcomer is closed with 1013 and ErrEvicted.
	// Until one of the two is closed, the key has one slot more than its limit.
	EvictOldest
)

// Inbound limits what clients send, whatever the library. A policy that admits several units is used to the last
// one: the handler reads as much as the limit admits, to the byte.
type Inbound struct {
	_ struct{} // literals must name the fields

	// Limiter is what is charged. It is asked for each read from the connection, so a MemoryStore suits it, unless
	// the Key is to be counted on all servers together. Required.
	Limiter *core.Limiter

	// Key is whom the limit counts, all sockets of the key together. A request without a key is refused with 400.
	// Nil means that each socket is counted alone.
	Key keyfuncs.Func

	// Plan is the plan of the Limiter that applies. If it is nil, absent or unknown to that, it is the default.
	Plan keyfuncs.Func

	// Delay makes the handler's Read wait until the limit admits more, and TCP slows the client down. If that takes
	// more than 10 seconds, or more than half of the time to the handler's read deadline, the socket is closed all the
	// same. So is every socket over a limit without Delay: with 1008 and ErrFlood.
	//
	// If the Limiter returns an error, Delay lets the handler read. Without Delay, the socket is closed with 1013.
	Delay bool
}

// Why the guard has closed a socket, for [Config].OnClosed.
var (
	// ErrIdle means that nothing was received for MaxIdle.
	ErrIdle = errors.New("headgate: nothing was received for too long")

	// ErrAged means that the socket was older than MaxAge.
	ErrAged = errors.New("headgate: the socket is too old")

	// ErrShutdown means that Shutdown was called.
	ErrShutdown = errors.New("headgate: the server is shutting down")

	// ErrProtocol means that the client sent what RFC 6455 forbids. Errors of the handler's reads wrap it, too.
	ErrProtocol = errors.New("headgate: the client sent what RFC 6455 forbids")

	// ErrFlood means that the client sent more than Messages, Bytes or the limit on control frames admit, or that a
	// Limiter returned an error; then the error wraps that, too. Errors of the handler's reads wrap ErrFlood.
	ErrFlood = errors.New("headgate: the client sent more than a limit admits")

	// ErrEvicted means that another socket has taken the place of this one, or that this one was to take the place of
	// another, and no server has confirmed it.
	ErrEvicted = errors.New("headgate: another socket has taken the place of this one")
)

// MaxOpen returns a guard of one rule: each key has at most n sockets open at once, 0 to [core.NoLimit]. Guards with
// the same store and name count together. MaxOpen panics if an argument is wrong.
func MaxOpen(store core.Store, name string, key keyfuncs.Func, n int64) *Guard {
	guard, err := New(Config{Rules: []Rule{{Slots: core.NewSlots(store, name, n), Key: key}}})
	if err != nil {
		panic(err)
	}
	return guard
}

// New returns a guard. The error has all faults of the Config, one line for each rule.
func New(config Config) (*Guard, error) {
	if err := config.validate(); err != nil {
		return nil, err
	}
	guard := &Guard{
		config: config, id: rand.Text(), evictAge: minEvictAge,
		sockets: make(map[*Socket]struct{}), empty: make(chan struct{}),
	}
	// The pauses are longer than those of requests: nobody knows when somebody leaves.
	watch := engine.NewWatch("websocketmw", config.Logger, false)
	guard.rules = engine.Rules{Watch: watch, LeastPause: 5, MostPause: 10}
	guard.indexes = make([]index, len(config.Rules))
	for i, rule := range config.Rules {
		guard.rules.Slots = append(guard.rules.Slots, engine.SlotsRule{
			Rule:  engine.Rule{Key: rule.Key, Plan: rule.Plan, Service: rule.WhenFull == Unavailable},
			Slots: rule.Slots, OneMore: rule.WhenFull == EvictOldest,
		})
		guard.indexes[i] = index{
			guard: guard, rule: i, slots: rule.Slots, notices: rule.Slots.Backend().Notices(),
			listener: guard.indexes[i].hear,
			lists:    make(map[string]list), closeOrders: make(map[string]closeOrder),
		}
	}
	for _, limit := range config.Messages {
		guard.inbound = append(guard.inbound, inboundLimit{limit, frames.Messages})
	}
	for _, limit := range config.Bytes {
		guard.inbound = append(guard.inbound, inboundLimit{limit, frames.Bytes})
	}
	for i := range guard.inbound {
		if guard.inbound[i].Key == nil {
			guard.inbound[i].Key = randomKey
		}
	}
	return guard, nil
}

// randomKey is the key of a socket that is counted alone.
func randomKey(*http.Request) (string, error) { return rand.Text(), nil }

func (c *Config) validate() error {
	all := engine.Faults{Where: "websocketmw: Config"}
	n := len(c.Rules)
	all.Add(n > engine.MaxRules, "there are %d Rules: at most %d are possible", n, engine.MaxRules)
	for _, field := range []struct {
		name string
		time.Duration
	}{{"MaxIdle", c.MaxIdle}, {"MaxAge", c.MaxAge}, {"Drain", c.Drain}} {
		all.Add(field.Duration < 0, "%s is %v: it must not be negative", field.name, field.Duration)
	}
	errs := append([]error{all.Err()}, c.ruleFaults()...)
	errs = append(errs, inboundFaults("Messages", c.Messages)...)
	return errors.Join(append(errs, inboundFaults("Bytes", c.Bytes)...)...)
}

func (c *Config) ruleFaults() (errs []error) {
	names := make(map[string]bool)
	evicts := false
	for i, rule := range c.Rules {
		faults := engine.Faults{Where: fmt.Sprintf("websocketmw: Rules[%d]", i)}
		faults.Add(rule.Slots == nil, "the Slots are nil: make them with core.NewSlots")
		faults.Add(rule.Key == nil, "the Key is nil: say whose sockets are counted, "+
			"with a function of package keyfuncs")
		isKnown := rule.WhenFull >= Refuse && rule.WhenFull <= EvictOldest
		faults.Add(!isKnown, "WhenFull is %d: use Refuse, Unavailable or EvictOldest", rule.WhenFull)
		if rule.Slots != nil {
			faults.Add(names[rule.Slots.Name()], "a rule before it has slots named %q, too", rule.Slots.Name())
			names[rule.Slots.Name()] = true
		}
		// With two, a newcomer could have to take the places of two sockets.
		faults.Add(evicts && rule.WhenFull == EvictOldest, "a rule before it has EvictOldest, too")
		evicts = evicts || rule.WhenFull == EvictOldest
		errs = append(errs, faults.Err())
	}
	return errs
}

func inboundFaults(field string, all []Inbound) (errs []error) {
	for i, limit := range all {
		faults := engine.Faults{Where: fmt.Sprintf("websocketmw: %s[%d]", field, i)}
		faults.Add(limit.Limiter == nil, "the Limiter is nil: make one with core.NewLimiter")
		errs = append(errs, faults.Err())
	}
	return errs
}
