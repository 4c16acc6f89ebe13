package thirdparty

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/backend"
	"github.com/headgate/headgate/internal/step"
	"github.com/headgate/headgate/internal/store"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/websocketmw"
)

// A counted is a store that counts the units that it admits.
type counted struct {
	store.Rates

	n atomic.Int64
}

func (c *counted) Backend() *backend.Stores { return &backend.Stores{Rates: c} }

func (c *counted) Ask(ctx context.Context, mode step.Mode, cells []step.Cell) (bool, error) {
	allowed, err := c.Rates.Ask(ctx, mode, cells)
	if err == nil && allowed && mode == step.Allow {
		c.n.Add(cells[0].Units)
	}
	return allowed, err
}

// Whatever a library takes for a message, the guard has counted, however the bytes are cut into
// reads, and with the handshake or after it. What the guard forbids, gorilla does too. Every socket gives
// its slot back.
func FuzzLibraries(f *testing.F) {
	hello := sentFrame(0x81, "hello")
	for _, s := range []string{
		strings.Repeat(hello, 5) + sentFrame(0x88, "\x03\xe8"),
		sentFrame(0x01, "in ") + sentFrame(0x89, "ping") + sentFrame(0x00, "") + sentFrame(0x80, "pieces") + hello,
		strings.Repeat(sentFrame(0x8b, "hello"), 3) + hello,
		strings.Repeat(sentFrame(0x83, "hello"), 3) + hello,
		longFrame(0x81, 1<<63+5, "hello") + hello,
		longFrame(0x82, 1<<62, "hello") + hello,
		strings.Repeat(sentFrame(0x80, "hello"), 3),
		sentFrame(0x01, "a") + hello + sentFrame(0x80, "b"),
		"\x81\x05hello" + hello,
		"\x81\xfe\x00\x05maskhello" + "\x82\xff\x00\x00\x00\x00\x00\x00\x00\x05maskhello" + hello,
		sentFrame(0x82, strings.Repeat("x", 200)) + hello,
		sentFrame(0xc1, "x") + sentFrame(0xa1, "x") + sentFrame(0x91, "x"),
		strings.Repeat(sentFrame(0x89, ""), 50) + strings.Repeat(sentFrame(0x8a, ""), 50) + hello,
		"\x89\xfe\x00\x01maskx" + hello,
		hello + sentFrame(0x88, "\x03\xe8") + hello + "\x82\xff\x00",
	} {
		f.Add([]byte(s), 4096, 4096, 0, uint8(3))
		f.Add([]byte(s), 1, 1, 3, uint8(255))
		f.Add([]byte(s), 7, 2, len(s), uint8(0))
	}
	const units = 2 // messages, bytes
	const far = 1 << 40
	stores := make([]*counted, units)
	for i := range stores {
		stores[i] = &counted{Rates: new(core.MemoryStore).Backend().Rates}
	}
	slots := core.NewSlots(new(core.MemoryStore), "ws", core.NoLimit)
	rules := []websocketmw.Rule{{Slots: slots, Key: keyfuncs.Everyone()}}
	f.Fuzz(func(t *testing.T, stream []byte, a, b, early int, limit uint8) {
		early = min(max(0, early), len(stream))
		cuts := []int{max(1, a&0xfff), max(1, b&0xff)}
		most := []int64{far, far}
		run := func(l library, wrap func(*websocketmw.Guard) func(http.Handler) http.Handler) (h heard, charged []int64, s *script) {
			var inbound [units]websocketmw.Inbound
			for i := range units {
				stores[i].n.Store(0)
				inbound[i].Limiter = core.NewLimiter(stores[i], "sent", core.SlidingWindow(most[i], 24*time.Hour))
			}
			s = &script{early: string(stream[:early]), sent: slices.Clone(stream[early:]), cuts: cuts}
			g, err := websocketmw.New(websocketmw.Config{Rules: rules, Messages: inbound[:1], Bytes: inbound[1:]})
			if err != nil {
				t.Fatal(err)
			}
			h = l.play(s, wrap(g))
			for i := range stores {
				charged = append(charged, stores[i].n.Load())
			}
			return h, charged, s
		}
		guarded := func(g *websocketmw.Guard) func(http.Handler) http.Handler { return g.Handler }
		if early == 0 {
			strict := libraries[0]
			with, _, _ := run(strict, guarded)
			without, _, _ := run(strict, func(*websocketmw.Guard) func(http.Handler) http.Handler {
				return func(h http.Handler) http.Handler { return h }
			})
			if !slices.Equal(with.text, without.text) {
				t.Errorf("%s: %d messages were read with the guard, %d without", strict.name, len(with.text), len(without.text))
			}
		}
		most[limit&1] = 1 + int64(limit>>2) // one of them is near
		for _, l := range libraries {
			h, charged, s := run(l, guarded)
			if h.messages > charged[0] && l.name != "x-net" || h.bytes > charged[1] { // x/net delivers each frame as a message
				t.Errorf("%s: the handler read %d messages and %d bytes of %v that were counted", l.name, h.messages, h.bytes, charged)
			}
			if pongs, _ := s.answers(0xa); pongs > 200+20*60 { // pings have a limit of their own
				t.Errorf("%s: %d pongs", l.name, pongs)
			}
			for i := range charged {
				if charged[i] > most[i] {
					t.Errorf("%s: %v counted under limits of %v", l.name, charged, most)
				}
			}
			for deadline := time.Now().Add(10 * time.Second); ; <-time.After(time.Millisecond) {
				if n, err := slots.Count(t.Context(), "everyone"); n == 0 && err == nil {
					break
				} else if time.Now().After(deadline) {
					t.Fatalf("%s: %d slots are held, %v", l.name, n, err)
				}
			}
		}
	})
}
