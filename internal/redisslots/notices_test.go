package redisslots

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/redistest"
	"github.com/headgate/headgate/internal/slots"
)

// A member is a process with a store that listens to notices, and answers each with how many slots it has given up.
type member struct {
	*Registry

	mu    sync.Mutex
	held  map[string][]slots.Grant // by topic
	since time.Time                // when the last was acquired
	heard []string
}

func join(t *testing.T, c Config, addrs ...string) *member {
	m := &member{Registry: open(t, c, addrs...), held: make(map[string][]slots.Grant)}
	t.Cleanup(m.Listen("ws", m.hear))
	return m
}

func (m *member) take(t *testing.T, key string) {
	t.Helper()
	g := acquires(t, m.Registry, key, 10)
	m.mu.Lock()
	defer m.mu.Unlock()
	topic := m.Topic("ws", key)
	m.held[topic], m.since = append(m.held[topic], g), time.Now()
}

func (m *member) hear(h slots.Heard) (a slots.NoticeAnswer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.heard = append(m.heard, h.Text)
	all := m.held[h.Topic]
	if h.Text != "close" || len(all) == 0 || m.since.After(time.Now().Add(-h.Age)) {
		return a
	}
	delete(m.held, h.Topic)
	return slots.NoticeAnswer{Text: strconv.Itoa(len(all)), Then: func() {
		for _, g := range all {
			g.Release()
		}
	}}
}

func (m *member) holds(key string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.held[m.Topic("ws", key)])
}

// announcing marks the context of an announcement.
type announcing struct{}

// closeAll returns how many slots were given up, and who was silent.
func (m *member) closeAll(t *testing.T, key string, all bool) (n int, silent []int64, err error) {
	return m.closeAllWithin(t, patient, key, all)
}

func (m *member) closeAllWithin(t *testing.T, d time.Duration, key string, all bool) (n int, silent []int64, err error) {
	ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), announcing{}, true), d)
	defer cancel()
	silent, err = m.Announce(ctx, slots.Notice{Name: "ws", Key: key, Text: "close", All: all}, func(answer string) bool {
		one, _ := strconv.Atoi(answer)
		n += one
		return false
	})
	return n, silent, err
}

// All who hold slots of a key are told, and answer before their slots are free; nobody who holds others, or has taken them
// since, gives any up.
func TestNoticesAreHeard(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	a, b, c := join(t, brief(3*time.Second), server.Addr()), join(t, brief(3*time.Second), server.Addr()), join(t, brief(3*time.Second), server.Addr())
	for _, m := range []*member{a, b, c, c} {
		m.take(t, "anna")
	}
	c.take(t, "bert")
	begin := time.Now()
	n, silent, err := a.closeAll(t, "anna", false)
	if n != 4 || len(silent) > 0 || err != nil {
		t.Errorf("%d were given up, %v silent, %v", n, silent, err)
	}
	if took := time.Since(begin); took > patient/2 {
		t.Errorf("it took %v", took)
	}
	until(t, "free", patient, func() bool { return isCounted(t, b.Registry, "anna", 0) })
	b.take(t, "\xff\xfe\x00{}") // keys are of any bytes
	if n, silent, err := a.closeAll(t, "\xff\xfe\x00{}", true); n != 1 || len(silent) > 0 || err != nil {
		t.Errorf("%d were given up, %v silent, %v", n, silent, err)
	}
	b.take(t, "anna")
	<-time.After(2 * lookPause)
	if b.holds("anna") != 1 || c.holds("bert") != 1 {
		t.Error("who was not meant gave up")
	}
	if left, err := server.Do("ZCARD", "headgate:{slots}:posts"); left != int64(1) {
		t.Errorf("%v notices are left, %v", left, err)
	}
}

// Whoever holds slots and does not answer is silent, with how many it holds.
func TestWhoDoesNotAnswerIsSilent(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	a := join(t, brief(3*time.Second), server.Addr())
	deaf := open(t, brief(3*time.Second), server.Addr())
	acquires(t, deaf, "key", 10)
	acquires(t, deaf, "key", 10)
	if _, silent, err := a.closeAllWithin(t, 2*lookPause, "key", true); len(silent) != 1 || silent[0] != 2 || err != nil {
		t.Error(silent, err)
	}
	server.Kill()
	if _, _, err := a.closeAll(t, "key", true); err == nil {
		t.Error("no error without Redis")
	}
}

// A notice to all reaches a process that no server remembers, whatever else is announced. One that a server has lost is
// posted again.
func TestNothingBuriesANoticeToAll(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	a, b := join(t, brief(3*time.Second), server.Addr()), join(t, brief(3*time.Second), server.Addr())
	a.take(t, "anna")
	for i := range maxPassing + 10 {
		passing := announcement{registry: b.Registry, start: time.Now(), posted: posted{ID: fmt.Sprint(i), Name: "other"}}
		if err := passing.post(t.Context()); (err != nil) != (i >= maxPassing) {
			t.Fatal(i, err)
		}
	}
	if err := a.client.Del(t.Context(), a.hash("ws", "anna")).Err(); err != nil { // so b does not know that a holds a slot
		t.Fatal(err)
	}
	if _, silent, err := b.closeAll(t, "anna", true); len(silent) > 0 || err != nil {
		t.Error(silent, err)
	}
	until(t, "closed", patient, func() bool { return a.holds("anna") == 0 })

	a.take(t, "anna")
	time.AfterFunc(5*time.Millisecond, server.Flush)
	until(t, "announced", patient, func() bool { // it is an error if it was lost before anybody could know who is meant
		_, silent, err := b.closeAll(t, "anna", true)
		return len(silent) == 0 && err == nil
	})
	until(t, "closed", patient, func() bool { return a.holds("anna") == 0 })
}

// With a secret, notices have no key either.
func TestNoticesHaveNoKey(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	a := join(t, hiding(brief(3*time.Second)), server.Addr())
	deaf := open(t, hiding(brief(3*time.Second)), server.Addr())
	acquires(t, deaf, "203.0.113.77", 10)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, _ = a.Announce(ctx, slots.Notice{Name: "ws", Key: "203.0.113.77", Text: "close", All: true}, func(string) bool { return false })
	}()
	var posts []redis.Z
	until(t, "posted", patient, func() bool {
		posts = a.client.ZRangeWithScores(t.Context(), a.posts()[0], 0, -1).Val()
		return len(posts) > 0
	})
	names := a.client.Keys(t.Context(), "*").Val()
	if text := fmt.Sprint(posts, names); contains(text, "203.0.113") {
		t.Error(text)
	}
}
