package remote

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/headgate/headgate/core/internal/keeper"
	"github.com/headgate/headgate/core/store"
)

const (
	// PostLife is how long a post is kept: a process that the servers do not answer for less
	// than that hears of it late.
	PostLife = time.Minute

	// MaxPosts is how many posts are kept at most, the newest.
	MaxPosts = 4096

	postsPause = 250 * time.Millisecond // between two looks for posts
	leastReply = 10 * time.Millisecond  // between two looks for replies, at first
	mostReply  = 80 * time.Millisecond  // and at last
)

// A Post is a text that was posted, when, and when it was read, by the servers' clock.
type Post struct {
	Text     string
	At, Read int64 // in microseconds
}

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
}

// A replied is the text of a reply.
type replied struct {
	IDs     []string `json:"ids"` // the incarnations of the process
	Answers [][]byte `json:"answers"`
}

// Listen implements [store.SlotStore].
func (s *Slots) Listen(name string, listen func(store.Heard) string) (stop func()) {
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
	var next int64
	var last time.Time // when the last look that was answered began
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
		posts, after, err := s.backend.Posts(call, next)
		cancel()
		if errors.Is(err, ErrGone) {
			return
		}
		if err == nil {
			for _, p := range posts {
				age := time.Duration(p.Read-p.At) * time.Microsecond
				if !last.IsZero() { // whatever the server's clock did
					age = min(age, time.Since(last))
				}
				s.hear(ctx, p.Text, max(age, 0))
			}
			next, last = after, start
		}
		timer.Reset(postsPause - min(time.Since(start), postsPause))
	}
}

// hear tells the listeners of a post of another process, and replies. The process replies if
// somebody has something to say, or if it is waited for.
func (s *Slots) hear(ctx context.Context, post string, age time.Duration) {
	var p posted
	if json.Unmarshal([]byte(post), &p) != nil || p.From == s.notices.process || ctx.Err() != nil {
		return
	}
	answers := s.notices.all.Tell(p.Name, store.Heard{Topic: string(p.Topic), Text: string(p.Text), Age: age})
	if answers == nil { // nobody listens
		return
	}
	r := replied{IDs: s.keeper.IDs()}
	for _, answer := range answers {
		if answer != "" {
			r.Answers = append(r.Answers, []byte(answer))
		}
	}
	expected := func(id string) bool { return slices.Contains(p.To, id) }
	if len(r.Answers) == 0 && !slices.ContainsFunc(r.IDs, expected) {
		return
	}
	reply := text(r)
	// In a goroutine: others wait for the next post.
	go func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.calls.Timeout)
		defer cancel()
		_ = s.backend.Reply(ctx, p.ID, s.notices.process, reply) // who waits for it sees that there is none
	}()
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
	topic := s.Topic(n.Name, n.Key)
	for _, answer := range s.notices.all.Tell(n.Name, store.Heard{Topic: topic, Text: n.Text}) {
		if answer != "" && heard(answer) {
			return nil, nil
		}
	}
	holders, err := s.holders(ctx, n.Name, n.Key)
	if err != nil {
		return nil, err
	}
	if len(holders) == 0 && !n.All {
		return nil, nil
	}
	p := posted{ID: rand.Text(), From: s.notices.process, Name: n.Name, Topic: []byte(topic), Text: []byte(n.Text)}
	for _, h := range holders {
		p.To = append(p.To, h.ID)
	}
	call, cancel := context.WithTimeout(ctx, s.calls.Timeout)
	defer cancel()
	if err := s.backend.Post(call, text(p)); err != nil {
		return counts(holders), s.failed(ctx, err)
	}
	return counts(s.replies(ctx, n, p.ID, holders, heard)), nil
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

// replies waits for the replies of the holders, and returns those that have not replied.
func (s *Slots) replies(ctx context.Context, n store.Notice, post string, holders []keeper.Field, heard func(string) bool) []keeper.Field {
	done := make(map[string]bool) // the processes whose replies were passed on
	for pause := leastReply; len(holders) > 0; pause = min(2*pause, mostReply) {
		select {
		case <-ctx.Done():
			return holders
		case <-time.After(pause):
		}
		call, cancel := context.WithTimeout(ctx, s.calls.Timeout)
		all, err := s.backend.Replies(call, post)
		cancel()
		if err != nil {
			continue
		}
		for process, reply := range all {
			var r replied
			if done[process] || json.Unmarshal([]byte(reply), &r) != nil {
				continue
			}
			done[process] = true
			holders = slices.DeleteFunc(holders, func(f keeper.Field) bool { return slices.Contains(r.IDs, f.ID) })
			for _, answer := range r.Answers {
				if heard(string(answer)) {
					return nil
				}
			}
		}
		if pause == mostReply { // some may have ended, or released everything
			if still, err := s.holders(ctx, n.Name, n.Key); err == nil {
				holders = slices.DeleteFunc(holders, func(f keeper.Field) bool {
					return !slices.ContainsFunc(still, func(g keeper.Field) bool { return f.ID == g.ID })
				})
			}
		}
	}
	return nil
}
