package remote

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/headgate/headgate/internal/old/core/internal/keeper"
	"github.com/headgate/headgate/internal/old/core/store"
)

const (
	// PostLife is how long a lasting post is kept: a process that the servers do not answer
	// for less than that hears of it late.
	PostLife = time.Minute

	// PassingLife is how long any other post is kept: longer than anybody waits for replies.
	PassingLife = 10 * time.Second

	// MaxPosts is how many lasting posts are kept at most: none is pushed out by another.
	MaxPosts = 1 << 14

	// MaxPassing is how many others are kept, the newest.
	MaxPassing = 1 << 12

	postsPause = 250 * time.Millisecond // between two looks for posts
	leastReply = 10 * time.Millisecond  // between two looks for replies, at first
	mostReply  = 80 * time.Millisecond  // and at last
)

// A Post is a text for all processes.
type Post struct {
	ID      string // of the replies to it
	Text    string // has no newline
	Lasting bool
}

// A Received is the text of a post, and how old it was by the servers' clock when it was read.
type Received struct {
	Text string
	Age  time.Duration
}

// A Cursor is where a process goes on to read posts. It has an instant of the servers, in
// microseconds, for the lasting posts, and another for the others.
type Cursor [2]int64

// Notices are posts that all processes read, a few times a second, while somebody listens:
// one that no server remembers hears of them, too. So a post is addressed to nobody; it has
// the incarnations whose answers the one who posts waits for.
type notices struct {
	process string // in the replies
	all     store.Listeners

	mu   sync.Mutex
	stop context.CancelFunc // ends the goroutine that reads posts; nil: there is none
}

// A posted is the text of a post.
type posted struct {
	ID    string   `json:"id"`
	From  string   `json:"from"` // the process
	Name  string   `json:"name"`
	Topic []byte   `json:"topic"`
	Text  []byte   `json:"text"`
	To    []string `json:"to"`
	Age   int64    `json:"age,omitempty"` // in microseconds, of one that is posted again
}

// A replied is the text of a reply.
type replied struct {
	IDs     []string `json:"ids"` // the incarnations of the process
	Answers [][]byte `json:"answers"`
}

// Listen implements [store.SlotStore].
func (s *Slots) Listen(name string, listen func(store.Heard) store.Answer) (stop func()) {
	n := &s.notices
	n.mu.Lock()
	defer n.mu.Unlock()
	remove := n.all.Add(name, listen)
	if n.stop == nil {
		ctx, cancel := context.WithCancel(context.Background())
		n.stop = cancel
		go s.readPosts(ctx)
	}
	return sync.OnceFunc(func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if remove(); n.all.None() {
			n.stop()
			n.stop = nil
		}
	})
}

// readPosts tells the listeners of posts until ctx ends.
func (s *Slots) readPosts(ctx context.Context) {
	var next Cursor
	var last time.Time // when the last look began that found all there was
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		start := time.Now()
		call, cancel := context.WithTimeout(ctx, s.calls.Timeout)
		posts, after, more, err := s.backend.Posts(call, next)
		read := time.Now()
		cancel()
		if errors.Is(err, ErrGone) {
			return
		}
		pause := postsPause - min(time.Since(start), postsPause)
		if err == nil {
			for _, p := range posts {
				age := p.Age
				if !last.IsZero() { // whatever the server's clock did
					age = min(age, read.Sub(last))
				}
				s.hear(ctx, p.Text, max(age, 0)+time.Since(read))
			}
			if next = after; more {
				pause = 0
			} else {
				last = start
			}
		}
		timer.Reset(pause)
	}
}

// hear tells the listeners of a post of another process, and replies. The process replies if
// somebody has something to say, or if it is waited for.
func (s *Slots) hear(ctx context.Context, post string, age time.Duration) {
	var p posted
	if json.Unmarshal([]byte(post), &p) != nil || p.From == s.notices.process || ctx.Err() != nil {
		return
	}
	age += time.Duration(p.Age) * time.Microsecond
	answers := s.notices.all.Tell(p.Name, store.Heard{Topic: string(p.Topic), Text: string(p.Text), Age: age})
	if answers == nil { // nobody listens
		return
	}
	r := replied{IDs: s.keeper.IDs()}
	for _, answer := range answers {
		if answer.Text != "" {
			r.Answers = append(r.Answers, []byte(answer.Text))
		}
	}
	expected := func(id string) bool { return slices.Contains(p.To, id) }
	if len(r.Answers) == 0 && !slices.ContainsFunc(r.IDs, expected) {
		told(answers)
		return
	}
	reply := text(r)
	// In a goroutine: others wait for the next post.
	go func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.calls.Timeout)
		defer cancel()
		_ = s.backend.Reply(ctx, p.ID, s.notices.process, reply) // who waits for it sees that there is none
		told(answers)
	}()
}

// told does what waits for the answers to be known.
func told(answers []store.Answer) {
	for _, answer := range answers {
		if answer.Then != nil {
			answer.Then()
		}
	}
}

// text returns what is posted or replied.
func text[T posted | replied](x T) string {
	b, err := json.Marshal(x)
	if err != nil {
		panic(err) // there is nothing in it that could fail
	}
	return string(b)
}

// Topic implements [store.SlotStore].
func (s *Slots) Topic(name, key string) string { return s.backend.Topic(name, key) }

// Announce implements [store.SlotStore].
func (s *Slots) Announce(ctx context.Context, n store.Notice, heard func(string) bool) (silent []int64, err error) {
	start := time.Now()
	topic := s.Topic(n.Name, n.Key)
	answers := s.notices.all.Tell(n.Name, store.Heard{Topic: topic, Text: n.Text})
	enough := slices.ContainsFunc(answers, func(a store.Answer) bool { return a.Text != "" && heard(a.Text) })
	if told(answers); enough {
		return nil, nil
	}
	holders, err := s.holders(ctx, n.Name, n.Key)
	if err != nil {
		return nil, err
	}
	if len(holders) == 0 && !n.All {
		return nil, nil
	}
	a := announcement{Slots: s, notice: n, heard: heard, start: start, awaited: holders, answered: make(map[string]bool)}
	a.post = posted{ID: rand.Text(), From: s.notices.process, Name: n.Name, Topic: []byte(topic), Text: []byte(n.Text)}
	for _, h := range holders {
		a.post.To = append(a.post.To, h.ID)
	}
	if err := a.send(ctx); err != nil {
		return counts(holders), s.failed(ctx, err)
	}
	a.await(ctx)
	return counts(a.awaited), nil
}

// failed returns the error of a call under ctx.
func (s *Slots) failed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return unavailable(err)
}

// holders returns what other processes hold of a key that are not dead.
func (s *Slots) holders(ctx context.Context, name, key string) ([]keeper.Field, error) {
	call, cancel := context.WithTimeout(ctx, s.calls.Timeout)
	defer cancel()
	stated, dead, err := s.backend.Stated(call, name, key)
	if err != nil {
		return nil, s.failed(ctx, err)
	}
	own := s.keeper.IDs()
	return slices.DeleteFunc(stated, func(f keeper.Field) bool {
		return f.Count == 0 || slices.Contains(own, f.ID) || slices.Contains(dead, f.ID)
	}), nil
}

func counts(holders []keeper.Field) (all []int64) {
	for _, h := range holders {
		all = append(all, h.Count)
	}
	return all
}

// An announcement is a notice that was posted.
type announcement struct {
	*Slots
	notice store.Notice
	heard  func(string) bool
	start  time.Time
	post   posted
	sent   Post // as it was posted last

	lost     bool            // by a server, and so perhaps what the holders have stated
	awaited  []keeper.Field  // the holders that have not answered
	answered map[string]bool // the processes whose replies were passed on
}

// send posts the notice, if need be again: who hears it late must not take it for a later one.
func (a *announcement) send(ctx context.Context) error {
	a.post.Age = time.Since(a.start).Microseconds()
	a.sent = Post{ID: a.post.ID, Text: text(a.post), Lasting: a.notice.All}
	call, cancel := context.WithTimeout(ctx, a.calls.Timeout)
	defer cancel()
	return a.backend.Post(call, a.sent)
}

// await waits for the replies of the holders. Those that have not are left in a.awaited.
func (a *announcement) await(ctx context.Context) {
	for pause := leastReply; len(a.awaited) > 0; pause = min(2*pause, mostReply) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		// Some may have ended, or released everything. This is asked before the replies: who
		// releases because of the notice has replied before.
		var still []keeper.Field
		looked := false
		if pause == mostReply && !a.lost { // after a loss, a holder may be missing that has not ended
			all, err := a.holders(ctx, a.notice.Name, a.notice.Key)
			still, looked = all, err == nil
		}
		call, cancel := context.WithTimeout(ctx, a.calls.Timeout)
		replies, stored, err := a.backend.Replies(call, a.sent)
		cancel()
		if err != nil {
			continue
		}
		if a.pass(replies) {
			a.awaited = nil
			return
		}
		switch {
		case !stored:
			a.lost = true
			_ = a.send(ctx) // if it fails, with the next look
		case looked:
			a.awaited = slices.DeleteFunc(a.awaited, func(f keeper.Field) bool {
				return !slices.ContainsFunc(still, func(g keeper.Field) bool { return f.ID == g.ID })
			})
		}
	}
}

// pass passes on the answers in the replies that are new, and reports whether they are enough.
func (a *announcement) pass(replies map[string]string) (enough bool) {
	for process, reply := range replies {
		var r replied
		if a.answered[process] || json.Unmarshal([]byte(reply), &r) != nil {
			continue
		}
		a.answered[process] = true
		a.awaited = slices.DeleteFunc(a.awaited, func(f keeper.Field) bool { return slices.Contains(r.IDs, f.ID) })
		for _, answer := range r.Answers {
			if a.heard(string(answer)) {
				return true
			}
		}
	}
	return false
}
