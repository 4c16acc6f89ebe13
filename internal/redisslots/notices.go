package redisslots

import (
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
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
// they read it. So nothing rests on the order of instants, and a process that no server remembers hears of them, too. A
// notice has the incarnations whose replies are waited for. A process that listens asks four times a second, and a call
// that tells it of nothing new reads one short value.
//
// A posted is the text of a notice in Redis, and a replied that of a reply. Other versions read both.
//
//	{"id": "Q2...", "from": "K7...", "name": "ws", "topic": "aGVhZGdhdGU6...", "text": "...", "to": ["7f3a"]}
type (
	posted struct {
		ID        string   `json:"id"`
		Sender    string   `json:"from"` // the id of its Registry
		Name      string   `json:"name"`
		Topic     []byte   `json:"topic"` // of any bytes
		Text      string   `json:"text"`
		Awaited   []string `json:"to"`            // incarnations whose replies are waited for
		AgeMicros int64    `json:"age,omitempty"` // in microseconds, of one that is posted again
	}

	replied struct {
		Incarnations []string `json:"ids"`     // of the process that replies, also former ones
		Answers      []string `json:"answers"` // of its listeners
	}
)

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

// posts are the names of the set of notices and of the id of the last.
func (s *Registry) posts() []string { return []string{s.common("posts"), s.common("last")} }

func (s *Registry) repliesKey(id string) string { return s.common("replies:" + id) }

// Topic implements [slots.Noticer].
func (s *Registry) Topic(name, key string) string { return s.hash(name, key) }

// Listen implements [slots.Noticer].
func (s *Registry) Listen(name string, listen func(slots.Heard) slots.NoticeAnswer) (stop func()) {
	return s.listeners.Add(name, listen)
}

// startReading starts the one goroutine that reads for the listeners of all names.
func (s *Registry) startReading() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	go s.read(ctx)
	return cancel
}

// read tells the listeners of what is posted, until ctx ends. Publishing would be quicker, but what Redis publishes
// while a connection is broken is gone.
func (s *Registry) read(ctx context.Context) {
	newest := ""                   // the id of the last notice of which this process knows
	known := make(map[string]bool) // the texts that were there when newest was read
	readAt := time.Time{}          // when the last read that was answered began
	for ctx.Err() == nil {
		// Before the call: a notice that is posted during it must not be taken for younger than it is.
		start := time.Now()
		call, cancel := context.WithTimeout(ctx, s.config.Timeout)
		reply, err := s.eval(call, readScript, s.posts(), newest)
		cancel()
		if err == nil && len(reply) > 0 {
			there := s.tellNew(reply[1:], known, readAt)
			// The id alone is the reply if nothing was posted since: then what is known must not be forgotten.
			last, _ := reply[0].(string)
			if last != newest {
				newest = last
				known = there
			}
			readAt = start
		}
		select {
		case <-ctx.Done():
		case <-time.After(lookPause):
		}
	}
}

// tellNew tells the listeners of the notices, each followed by its age, that are not known. It returns all that are
// there.
func (s *Registry) tellNew(reply []any, known map[string]bool, readAt time.Time) (there map[string]bool) {
	there = make(map[string]bool)
	for i := 0; i+1 < len(reply); i += 2 {
		text, _ := reply[i].(string)
		micros, _ := reply[i+1].(int64)
		there[text] = true
		if known[text] {
			continue
		}
		// It was not there at the last read, so it is no older than that, whatever the server's clock did since. Taken
		// for older, it would spare slots that it means.
		age := max(time.Duration(micros)*time.Microsecond, 0)
		if !readAt.IsZero() {
			age = min(age, time.Since(readAt))
		}
		s.tell(text, age)
	}
	return there
}

// tell tells the listeners of a notice of another process, and replies if they say something or if this is waited for.
func (s *Registry) tell(text string, age time.Duration) {
	// This process has told its own listeners when it announced.
	var notice posted
	if json.Unmarshal([]byte(text), &notice) != nil || notice.Sender == s.id {
		return
	}
	age += time.Duration(notice.AgeMicros) * time.Microsecond
	own := s.Incarnations()
	heard := slots.Heard{Topic: string(notice.Topic), Text: notice.Text, Age: age}
	answers, then := s.listeners.Tell(notice.Name, heard)
	awaited := slices.ContainsFunc(own, func(id string) bool { return slices.Contains(notice.Awaited, id) })
	// Nobody waits for a reply that says nothing, and a thousand processes would write it.
	if len(answers) == 0 && !awaited {
		then()
		return
	}
	reply := marshal(replied{own, answers})
	go func() { // others wait for the next notice
		defer then()
		ctx, cancel := context.WithTimeout(context.Background(), s.config.Timeout)
		defer cancel()
		pipe := s.client.Pipeline()
		pipe.HSet(ctx, s.repliesKey(notice.ID), s.id, reply)
		pipe.Expire(ctx, s.repliesKey(notice.ID), noticeLife)
		_, _ = pipe.Exec(ctx) // who waits for it sees that there is none
	}()
}

func marshal(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err) // there is nothing in it that could fail
	}
	return string(text)
}

// Announce implements [slots.Noticer].
//
// A process that is awaited has answered, or has ended: then its field is gone. A field that is gone because the server
// has lost it must not be taken for that. So a mark is written beside the key's hash before the holders are read. A
// server that has the mark has all that was written before it.
func (s *Registry) Announce(ctx context.Context, n slots.Notice, answered func(string) bool) ([]int64, error) {
	start := time.Now()
	topic := s.Topic(n.Name, n.Key)
	// The listeners of this process need no server, and may know enough.
	answers, then := s.listeners.Tell(n.Name, slots.Heard{Topic: topic, Text: n.Text})
	enough := slices.ContainsFunc(answers, answered)
	then()
	if enough {
		return nil, nil
	}
	// The listeners of other processes are asked from here on. Who may have heard is not known after an error.
	a := announcement{
		registry: s, notice: n, answered: answered, start: start, repliers: make(map[string]bool),
		posted: posted{ID: rand.Text(), Sender: s.id, Name: n.Name, Topic: []byte(topic), Text: n.Text},
	}
	err := a.findAwaited(ctx)
	if err != nil || len(a.awaited) == 0 && !n.All {
		return nil, err
	}
	if len(a.awaited) > 0 {
		s.BeatForOthers() // one of them may have been killed while nobody else beats
	}
	err = a.post(ctx)
	if err != nil {
		return counts(a.awaited), err // it may be there all the same
	}
	if !n.All { // only those that can answer now are meant
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

// An announcement is a notice that was posted, and who has not answered. Who is awaited is struck out in three ways: it
// has replied; it holds nothing any more; or one reply was enough.
type announcement struct {
	registry *Registry
	notice   slots.Notice
	answered func(string) (enough bool)
	start    time.Time
	posted   posted
	text     string // of the notice, as it was posted last
	mark     string // beside the key's hash; "": none, as the notice is not for All
	awaited  []keeper.Holder
	repliers map[string]bool // the processes whose answers were passed on
	lost     bool            // by a server: a field that is gone means nothing
}

// findAwaited writes the mark, and finds out whose replies are waited for.
func (a *announcement) findAwaited(ctx context.Context) (err error) {
	if a.notice.All {
		// One for each announcement, as that of another would also be there if it was written after a loss. It expires,
		// like the notice.
		a.mark = string(a.posted.Topic) + ":" + a.posted.ID
		if err := a.registry.client.Set(ctx, a.mark, "", noticeLife).Err(); err != nil {
			return unavailable(err)
		}
	}
	a.awaited, err = a.registry.holders(ctx, a.notice.Name, a.notice.Key, a.mark)
	for _, holder := range a.awaited {
		a.posted.Awaited = append(a.posted.Awaited, holder.ID)
	}
	return err
}

// look passes answers on, and strikes out who has answered or ended. What a server has lost is posted again.
func (a *announcement) look(ctx context.Context) (enough bool) {
	// The holders first, then the replies. Who releases because of the notice has replied before, so whoever is missing
	// among the holders has its reply in what is read after them.
	holders, failure := a.registry.holders(ctx, a.notice.Name, a.notice.Key, a.mark)
	pipe := a.registry.client.Pipeline()
	replies := pipe.HGetAll(ctx, a.registry.repliesKey(a.posted.ID))
	stored := pipe.ZScore(ctx, a.registry.posts()[0], a.text)
	_, err := pipe.Exec(ctx)
	if err != nil && !errors.Is(err, redis.Nil) {
		return false
	}
	for id, text := range replies.Val() {
		var reply replied
		if a.repliers[id] || json.Unmarshal([]byte(text), &reply) != nil {
			continue
		}
		a.repliers[id] = true
		a.strike(func(holder keeper.Holder) bool { return slices.Contains(reply.Incarnations, holder.ID) })
		if slices.ContainsFunc(reply.Answers, a.answered) {
			a.awaited = nil
			return true
		}
	}
	// Who holds nothing any more needs no answer, if the server is sure to know.
	isMarkLost := errors.Is(failure, errLost)
	switch {
	case failure != nil && !isMarkLost: // the next look tries it again
	case isMarkLost, stored.Err() != nil:
		a.lost = true // from now on only answers count
	case !a.lost:
		a.strike(func(awaited keeper.Holder) bool {
			return !slices.ContainsFunc(holders, func(holder keeper.Holder) bool { return holder.ID == awaited.ID })
		})
	}
	if stored.Err() != nil {
		_ = a.post(ctx) // after an error, the next look tries it again
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
func (a *announcement) post(ctx context.Context) error {
	a.posted.AgeMicros = time.Since(a.start).Microseconds()
	text := marshal(&a.posted)
	// All who listen read all notices, so there are not many. Those that pass leave room for those that last, which
	// close the sockets of a user.
	maximum := maxPassing
	if a.notice.All {
		maximum = maxLasting
	}
	args := []any{rand.Text(), text, int(noticeLife.Seconds()), maximum}
	cmd := postScript.command(ctx, false, a.registry.posts(), args)
	if err := a.registry.client.Process(ctx, cmd); err != nil {
		return unavailable(err)
	}
	isPosted, _ := cmd.Bool()
	if !isPosted {
		return fmt.Errorf("headgate: %d notices were announced within %v", maximum, noticeLife)
	}
	a.text = text
	return nil
}
