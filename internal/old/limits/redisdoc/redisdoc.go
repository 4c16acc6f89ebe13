// Package redisdoc keeps a document of package limits in Redis, for all servers together.
//
// It is a hash with a version and the document. Servers ask for the version every second, and are told of a new one by
// PUBLISH. The version never decreases. A server that finds a lower one keeps its document and says so. A failover that
// has lost writes may show a lower one.
//
// The command headgate push writes the document, unless a server would refuse it, and waits until all have it. For
// that, each server tells in a second hash what it has and needs. Without TIME, it tells the time of its own clock.
package redisdoc

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/old/limits"
)

// DefaultKey is the key of the document, and the channel of its changes. It does not begin as the
// keys of package redisstore do, which servers may write. The braces keep all that belongs to it on
// one server of a Cluster.
const DefaultKey = "{headgate-limits}"

const (
	fieldVersion  = "version"
	fieldDocument = "document"

	// tellEvery is how often a server tells what it has, and aliveFor how long after that it is
	// counted.
	tellEvery = 3 * time.Second
	aliveFor  = 10 * time.Second
	deadAfter = time.Hour // from then on it is forgotten
)

// Config configures a Source. Its zero value is ready to use.
type Config struct {
	// Key is the key of the document. Empty means [DefaultKey]. On a Cluster it must have a hash
	// tag.
	Key string

	// Instance is the name of this process in [Source.Servers]. Empty means a random one.
	Instance string
}

// A Source is the document in Redis: a [limits.Waker] and a [limits.Listener]. It is safe for concurrent use, and
// for one book.
type Source struct {
	client   redis.UniversalClient
	key      string
	instance string

	mu      sync.Mutex
	version int64 // the highest that was found
	text    []byte
	told    string // what was told last, and when
	toldAt  time.Time
}

// Format implements [fmt.Formatter]: it prints where the document is. What it says has keys.
func (s *Source) Format(state fmt.State, _ rune) { _, _ = fmt.Fprintf(state, "document at %q", s.key) }

// New returns the source of a document. The client should heed contexts: see package
// redisstore.
func New(client redis.UniversalClient, c Config) (*Source, error) {
	if client == nil {
		return nil, errors.New("headgate: redisdoc: the client is nil")
	}
	if c.Key == "" {
		c.Key = DefaultKey
	}
	if c.Instance == "" {
		c.Instance = rand.Text()[:12]
	}
	return &Source{client: client, key: c.Key, instance: c.Instance}, nil
}

// Load implements [limits.Source]. It asks for the document only if the version has changed.
func (s *Source) Load(ctx context.Context) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	found, err := s.client.HGet(ctx, s.key, fieldVersion).Result()
	if err == nil && s.text != nil && found == strconv.FormatInt(s.version, 10) {
		return s.text, nil
	}
	text, version, err := s.read(ctx)
	switch {
	case err != nil:
		return nil, err
	case version < s.version:
		return nil, fmt.Errorf("headgate: redisdoc: the version went back from %d to %d: push the document again", s.version, version)
	}
	s.version, s.text = version, []byte(text)
	return s.text, nil
}

// read returns the document and its version.
func (s *Source) read(ctx context.Context) (text string, version int64, err error) {
	all, err := s.client.HMGet(ctx, s.key, fieldVersion, fieldDocument).Result()
	if err != nil {
		return "", 0, fmt.Errorf("headgate: redisdoc: %w", err)
	}
	if all[0] == nil && all[1] == nil {
		return "", 0, fmt.Errorf("headgate: redisdoc: there is no document at %s: push one", s.key)
	}
	number, _ := all[0].(string)
	text, _ = all[1].(string)
	version, err = strconv.ParseInt(number, 10, 64)
	if err != nil || version < 1 || version > maxVersion || strconv.FormatInt(version, 10) != number {
		return "", 0, fmt.Errorf("%w: see %s", ErrTorn, s.key)
	}
	if text == "" {
		return "", version, fmt.Errorf("%w: see %s", ErrTorn, s.key)
	}
	return text, version, nil
}

// maxVersion is the largest that the script can increase.
const maxVersion = 1<<53 - 1

// ErrTorn is the error if Redis has no document with a version. Another Push mends that.
var ErrTorn = errors.New("headgate: redisdoc: what is in Redis was not pushed: it has no version, or no document: push one")

// now returns the time of Redis, by which all servers tell of themselves, or of this process if that
// is not permitted.
func (s *Source) now(ctx context.Context) time.Time {
	if now, err := s.client.Time(ctx).Result(); err == nil {
		return now
	}
	return time.Now()
}

// Wake implements [limits.Waker].
func (s *Source) Wake(ctx context.Context, wake func()) {
	sub := s.client.Subscribe(ctx, s.key)
	defer sub.Close() //nolint:errcheck // nothing is left to do
	changes := sub.Channel()
	for {
		select {
		case _, open := <-changes:
			if !open {
				return // the client was closed
			}
			wake()
		case <-ctx.Done():
			return
		}
	}
}

// A Server is the report of a server about itself.
type Server struct {
	Instance string    `json:"instance"`
	Version  string    `json:"version"` // of the document that is in force there
	Found    int64     `json:"found"`   // version in Redis that it has read, whether it is in force or not
	Err      string    `json:"err,omitempty"`
	At       time.Time `json:"at"` // by the clock of Redis

	// ClockOffset is by how much its clock is ahead of the one of Redis, as exactly as it could ask.
	ClockOffset time.Duration `json:"clock_offset,omitempty"`

	Program limits.Program `json:"program"` // which documents it takes: see [limits.Document.Check]
}

// maxText is how many bytes of a text are told, and read.
const maxText = 500

func short(s string) string { return strings.ToValidUTF8(s[:min(len(s), maxText)], "\uFFFD") }

// Loaded implements [limits.Listener]: it tells the others which document is in force here.
func (s *Source) Loaded(ctx context.Context, state limits.State) {
	s.mu.Lock()
	me := Server{Instance: s.instance, Version: state.Version, Found: s.version, Program: state.Program}
	if state.Err != nil {
		me.Err = short(state.Err.Error())
	}
	id := fmt.Sprint(me)
	if id == s.told && time.Since(s.toldAt) < tellEvery {
		s.mu.Unlock()
		return
	}
	s.told, s.toldAt = id, time.Now()
	s.mu.Unlock()
	me.At = s.now(ctx)
	me.ClockOffset = time.Since(me.At).Round(time.Millisecond)
	text, err := json.Marshal(me)
	if err != nil {
		return
	}
	_ = s.client.HSet(ctx, s.serversKey(), s.instance, text).Err() // it may not be permitted
}

func (s *Source) serversKey() string { return s.key + ":servers" }

// Servers returns the servers that have told of themselves within 10 seconds, by the clock of Redis.
func (s *Source) Servers(ctx context.Context) ([]Server, error) {
	now := s.now(ctx)
	all, err := s.records(ctx, now)
	return slices.DeleteFunc(all, func(one Server) bool { return now.Sub(one.At).Abs() > aliveFor }), err
}

// records returns all that servers have told of themselves. It forgets those who are dead by now, unless
// that is zero. Who has told before the clock of Redis went back has told in the future.
func (s *Source) records(ctx context.Context, now time.Time) (all []Server, err error) {
	texts, err := s.client.HGetAll(ctx, s.serversKey()).Result()
	if err != nil {
		return nil, fmt.Errorf("headgate: redisdoc: %w", err)
	}
	for instance, text := range texts {
		var one Server
		if err := json.Unmarshal([]byte(text), &one); err != nil || !now.IsZero() && now.Sub(one.At).Abs() > deadAfter {
			_ = s.client.HDel(ctx, s.serversKey(), instance).Err() // the next who can does
			continue
		}
		one.Instance, one.Version, one.Err = short(one.Instance), short(one.Version), short(one.Err)
		all = append(all, one)
	}
	return all, nil
}

// ErrConflict is the error of a Push if somebody else has pushed meanwhile.
var ErrConflict = errors.New("headgate: redisdoc: there is another version than the one that was compared: compare again")

// Current returns the text that is in Redis and its version, or 0 if there is none. After
// [ErrTorn], the version is the one that Push replaces.
func (s *Source) Current(ctx context.Context) (text string, version int64, err error) {
	n, err := s.client.Exists(ctx, s.key).Result()
	if err != nil {
		return "", 0, fmt.Errorf("headgate: redisdoc: %w", err)
	}
	if n == 0 {
		return "", 0, nil
	}
	return s.read(ctx)
}

// push writes a document if the version is the one that was found. The new one is the time in
// milliseconds, so that it is larger than any that was lost. Clocks go back; so it is larger than the
// old one, and than those that servers have read. That PUBLISH is not permitted is no failure: the
// servers also ask.
const push = `
local found = redis.call('HGET', KEYS[1], 'version')
if not found or not string.match(found, '^[1-9]%d*$') or tonumber(found) > 9007199254740991 then found = '0' end
if found ~= ARGV[1] then return redis.error_reply('CONFLICT') end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local version = string.format('%.0f', math.max(now, found + 1, ARGV[3] + 1))
redis.call('HSET', KEYS[1], 'version', version, 'document', ARGV[2])
redis.pcall('PUBLISH', KEYS[1], version)
return version
`

// highest returns the highest version that servers say they have read. It may have been lost, and
// servers refuse a lower one. Who may not read them goes without.
func (s *Source) highest(ctx context.Context) (version int64) {
	all, _ := s.records(ctx, time.Time{})
	for _, one := range all {
		if one.Found < maxVersion/2 { // a server that lies must not use the versions up
			version = max(version, one.Found)
		}
	}
	return version
}

// Push writes the document, in the place of that version, and wakes all servers. 0 is for no
// document. It returns the new version, which is larger. If there is another one, the error is
// [ErrConflict]. After an error nothing was written, unless it is of the connection.
func (s *Source) Push(ctx context.Context, d *limits.Document, replaces int64) (version int64, err error) {
	text, err := d.MarshalJSON()
	if err != nil {
		return 0, err
	}
	if _, err := limits.Parse(text, nil); err != nil { // its canonical form may be too long
		return 0, fmt.Errorf("headgate: redisdoc: servers would not read the document as it is published: %w", err)
	}
	v, err := s.client.Eval(ctx, push, []string{s.key}, strconv.FormatInt(replaces, 10), text, s.highest(ctx)).Text()
	if err != nil {
		if redis.HasErrorPrefix(err, "CONFLICT") {
			return 0, ErrConflict
		}
		return 0, fmt.Errorf("headgate: redisdoc: %w", err)
	}
	return strconv.ParseInt(v, 10, 64)
}
