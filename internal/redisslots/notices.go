package redisslots

import (
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/slots"
	"github.com/headgate/headgate/internal/slots/keeper"
)

const (
	noticeLife = time.Minute // a process that is cut off for less hears of a lasting notice late
	maxLasting = 1 << 12     // notices at once
	maxPassing = 1 << 11     // at which only lasting ones are posted
	lookPause  = 250 * time.Millisecond
	replyPause = 20 * time.Millisecond
)

// Notices are posted in one sorted set, which all processes read that listen: all of it, if another was posted since
// they read it. So nothing rests on the order of instants, and a process that no server remembers hears of them, too.
// A notice has the incarnations whose replies are waited for.
type notices struct {
	slots.Listeners

	mu   sync.Mutex
	stop context.CancelFunc // of the goroutine that reads; nil: there is none
}

// errLost is why nobody knows who holds slots of a key.
var errLost = errors.New("headgate: the server has lost what it had")

var (
	//go:embed post.lua
	postSource string

	//go:embed read.lua
	readSource string

	postScript = newScript(postSource) //nolint:gochecknoglobals // never changed
	readScript = newScript(readSource) //nolint:gochecknoglobals // never changed
)

// A posted is the text of a notice in Redis, and a replied that of a reply.
type posted struct {
	ID    string   `json:"id"`
	From  string   `json:"from"` // Store.id
	Name  string   `json:"name"`
	Topic []byte   `json:"topic"` // of any bytes
	Text  string   `json:"text"`
	To    []string `json:"to"`            // replies are waited for
	Age   int64    `json:"age,omitempty"` // in microseconds, of one that is posted again
}

type replied struct {
	IDs     []string `json:"ids"`
	Answers []string `json:"answers"`
}

// posts are the names of the set of notices and of the id of the last.
func (s *Registry) posts() []string { return []string{s.common("posts"), s.common("last")} }

func (s *Registry) repliesKey(id string) string { return s.common("replies:" + id) }

// Topic implements [slots.Noticer].
func (s *Registry) Topic(name, key string) string { return s.hash(name, key) }

// Listen implements [slots.Noticer].
func (s *Registry) Listen(name string, listen func(slots.Heard) slots.NoticeAnswer) (stop func()) {
	n := &s.notices
	n.mu.Lock()
	defer n.mu.Unlock()
	remove, first := n.Add(name, listen)
	if first {
		ctx, cancel := context.WithCancel(context.Background())
		n.stop = cancel
		go s.read(ctx)
	}
	return sync.OnceFunc(func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		remove()
		if n.None() {
			n.stop()
		}
	})
}

// read tells the listeners of what is posted, until ctx ends.
func (s *Registry) read(ctx context.Context) {
	seen := make(map[string]bool) // what was there when all was read last
	last := ""
	before := time.Time{}
	for ctx.Err() == nil {
		start := time.Now()
		call, cancel := context.WithTimeout(ctx, s.config.Timeout)
		reply, err := s.run(call, readScript, s.posts(), last)
		cancel()
		if err == nil && len(reply) > 0 {
			there := make(map[string]bool)
			for i := 1; i+1 < len(reply); i += 2 {
				text, _ := reply[i].(string)
				age, _ := reply[i+1].(int64)
				there[text] = true
				if !seen[text] {
					passed := max(time.Duration(age)*time.Microsecond, 0)
					if !before.IsZero() { // whatever the server's clock did
						passed = min(passed, time.Since(before))
					}
					s.hear(text, passed)
				}
			}
			newest, _ := reply[0].(string)
			if newest != last {
				seen = there
				last = newest
			}
			before = start
		}
		select {
		case <-ctx.Done():
		case <-time.After(lookPause):
		}
	}
}

// hear tells the listeners of a notice of another process, and replies if they say something or if this is waited for.
func (s *Registry) hear(text string, age time.Duration) {
	var p posted
	_, own := s.Own("", "")
	if json.Unmarshal([]byte(text), &p) != nil || p.From == s.id {
		return
	}
	answers, then := s.notices.Tell(p.Name, slots.Heard{Topic: string(p.Topic), Text: p.Text, Age: age + time.Duration(p.Age)*time.Microsecond})
	awaited := slices.ContainsFunc(own, func(id string) bool { return slices.Contains(p.To, id) })
	if len(answers) == 0 && !awaited {
		then()
		return
	}
	r := replied{own, answers}
	go func() { // others wait for the next notice
		defer then()
		ctx, cancel := context.WithTimeout(context.Background(), s.config.Timeout)
		defer cancel()
		pipe := s.client.Pipeline()
		pipe.HSet(ctx, s.repliesKey(p.ID), s.id, marshal(r))
		pipe.Expire(ctx, s.repliesKey(p.ID), noticeLife)
		_, _ = pipe.Exec(ctx) // who waits for it sees that there is none
	}()
}

func marshal(x any) string {
	b, err := json.Marshal(x)
	if err != nil {
		panic(err) // there is nothing in it that could fail
	}
	return string(b)
}

// Announce implements [slots.Noticer].
//
// A process that is awaited has answered, or has ended: then its field is gone. A field that is gone because the server
// has lost it must not be taken for that. So a mark is written beside the key's hash before the holders are read. A
// server that has the mark has all that was written before it.
func (s *Registry) Announce(ctx context.Context, n slots.Notice, heard func(string) bool) (silent []int64, err error) {
	start := time.Now()
	topic := s.Topic(n.Name, n.Key)
	answers, then := s.notices.Tell(n.Name, slots.Heard{Topic: topic, Text: n.Text})
	enough := slices.ContainsFunc(answers, heard)
	then()
	if enough {
		return nil, nil
	}
	a := announcement{
		Registry: s, notice: n, heard: heard, start: start, passed: make(map[string]bool),
		post: posted{ID: rand.Text(), From: s.id, Name: n.Name, Topic: []byte(topic), Text: n.Text},
	}
	if n.All {
		a.mark = topic + ":" + a.post.ID
		if err := s.client.Set(ctx, a.mark, "", noticeLife).Err(); err != nil {
			return nil, unavailable(err)
		}
	}
	var marked bool
	a.awaited, marked, err = s.holders(ctx, n.Name, n.Key, a.mark)
	if err == nil && !marked {
		err = unavailable(errLost)
	}
	if err != nil || len(a.awaited) == 0 && !n.All {
		return nil, err
	}
	for _, holder := range a.awaited {
		a.post.To = append(a.post.To, holder.ID)
	}
	if len(a.awaited) > 0 {
		s.Watch() // one of them may have been killed while nobody else beats
	}
	if a.text, err = s.post(ctx, &a.post, a.start, n.All); err != nil {
		return counts(a.awaited), err
	}
	if !n.All {
		defer func() { _ = s.client.ZRem(context.WithoutCancel(ctx), s.posts()[0], a.text).Err() }()
	}
	for len(a.awaited) > 0 {
		select {
		case <-ctx.Done():
			return counts(a.awaited), nil
		case <-time.After(replyPause):
		}
		enough := a.look(ctx)
		if enough {
			break
		}
	}
	return counts(a.awaited), nil
}

// An announcement is a notice that was posted, and who has not answered.
type announcement struct {
	*Registry

	notice  slots.Notice
	heard   func(string) bool
	start   time.Time
	post    posted
	text    string // of the notice, as it was posted last
	mark    string // "": none
	awaited []keeper.Holder
	passed  map[string]bool // the processes whose answers were passed on
	lost    bool            // by a server: a field that is gone means nothing
}

// look passes answers on, and strikes out who has answered or ended. What a server has lost is posted again.
func (a *announcement) look(ctx context.Context) (enough bool) {
	// Who releases because of the notice has replied before.
	still, marked, failure := a.holders(ctx, a.notice.Name, a.notice.Key, a.mark)
	pipe := a.client.Pipeline()
	replies := pipe.HGetAll(ctx, a.repliesKey(a.post.ID))
	stored := pipe.ZScore(ctx, a.posts()[0], a.text)
	_, err := pipe.Exec(ctx)
	if err != nil && !errors.Is(err, redis.Nil) {
		return false
	}
	for id, reply := range replies.Val() {
		var r replied
		if a.passed[id] || json.Unmarshal([]byte(reply), &r) != nil {
			continue
		}
		a.passed[id] = true
		a.strike(func(holder keeper.Holder) bool { return slices.Contains(r.IDs, holder.ID) })
		if slices.ContainsFunc(r.Answers, a.heard) {
			a.awaited = nil
			return true
		}
	}
	switch {
	case failure != nil:
	case !marked, stored.Err() != nil:
		a.lost = true // from now on only answers count
	case !a.lost:
		a.strike(func(other keeper.Holder) bool {
			return !slices.ContainsFunc(still, func(g keeper.Holder) bool { return g.ID == other.ID })
		})
	}
	if stored.Err() != nil {
		text, err := a.Registry.post(ctx, &a.post, a.start, a.notice.All)
		if err == nil {
			a.text = text
		}
	}
	return false
}

func (a *announcement) strike(who func(keeper.Holder) bool) {
	a.awaited = slices.DeleteFunc(a.awaited, who)
}

// counts returns how many slots each holds.
func counts(all []keeper.Holder) (counts []int64) {
	for _, holder := range all {
		counts = append(counts, holder.Count)
	}
	return counts
}

// post posts a notice, if need be again: who hears of it late must not take it for a later one.
func (s *Registry) post(ctx context.Context, p *posted, start time.Time, lasting bool) (text string, err error) {
	p.Age = time.Since(start).Microseconds()
	text = marshal(p)
	most := maxPassing
	if lasting {
		most = maxLasting
	}
	cmd := postScript.command(ctx, false, s.posts(), []any{rand.Text(), text, int(noticeLife.Seconds()), most})
	if err := s.client.Process(ctx, cmd); err != nil {
		return "", unavailable(err)
	}
	n, _ := cmd.Int()
	if n == 0 {
		return "", fmt.Errorf("headgate: %d notices were announced within %v", most, noticeLife)
	}
	return text, nil
}
