package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/old/core/internal/remote"
)

// notices is the name of the sorted set of the lasting posts and of the clock of all, passing
// of the other posts, and replies of the hash of the replies to one. They are in the hash slot of
// servers.
func (n *namer) notices() string            { return n.beatTag() + ":notices" }
func (n *namer) passing() string            { return n.beatTag() + ":passing" }
func (n *namer) replies(post string) string { return n.beatTag() + ":replies:" + post }

// The scripts about notices. In both sets, the score of a post is the instant of the server, or
// later than the one of the post before; #last has the latest, negative.
var (
	// It replies whether there was room. A lasting post is never pushed out by others.
	postScript = newScript(`
local clock, set, life, most = KEYS[1], KEYS[2], tonumber(ARGV[2]), tonumber(ARGV[3])
local t, last = redis.call('TIME'), redis.call('ZSCORE', clock, '#last')
local now = math.max(t[1] * 1000000 + t[2], 1 - tonumber(last or 0))
redis.call('ZREMRANGEBYSCORE', set, 0, '(' .. string.format('%.0f', now - life * 1000000))
local over = redis.call('ZCOUNT', set, 0, '+inf') + 1 - most
if over > 0 then
  if set == clock then return 'full' end
  redis.call('ZREMRANGEBYRANK', set, 0, over - 1)
end
redis.call('ZADD', set, string.format('%.0f', now), ARGV[1])
redis.call('EXPIRE', set, life)
redis.call('ZADD', clock, string.format('%.0f', -now), '#last')
redis.call('EXPIRE', clock, ARGV[4])
return ''`)

	// It returns the time and #last, and for each post a line with the number of its set, its
	// instant and its text. If the server has forgotten what was asked for last, or its clock
	// was set back meanwhile, it returns all.
	postsScript = newScript(`
local t, last = redis.call('TIME'), -tonumber(redis.call('ZSCORE', KEYS[1], '#last') or 0)
local now = math.max(t[1] * 1000000 + t[2], last)
local lines = {string.format('%.0f %.0f', now, last)}
for i, set in ipairs(KEYS) do
  local after = tonumber(ARGV[i])
  if last < after then after = 0 end
  if last > after then
    after = math.max(after, now - ARGV[i + 2] * 1000000)
    local all = redis.call('ZRANGEBYSCORE', set, '(' .. string.format('%.0f', after), '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[5])
    for j = 1, #all, 2 do
      lines[#lines + 1] = i .. string.format(' %.0f ', tonumber(all[j + 1])) .. all[j]
    end
  end
end
return table.concat(lines, '\n')`)

	replyScript = newScript(`
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('EXPIRE', KEYS[1], ARGV[3])
return ''`)
)

const (
	postLife    = int(remote.PostLife / 1e9)    // in seconds
	passingLife = int(remote.PassingLife / 1e9) // in seconds
	postsAtOnce = 256                           // of each set, in a reply
)

var errPosts = fmt.Errorf("headgate: redisstore: %d notices to all were announced within %v", remote.MaxPosts, remote.PostLife)

// Topic implements [remote.SlotBackend].
func (b *backend) Topic(name, key string) string { return b.names.slots(name, key) }

// postsOf returns the set that a post is in, how long it is there, and how many are.
func (b *backend) postsOf(p remote.Post) (set string, life, most int) {
	if p.Lasting {
		return b.names.notices(), postLife, remote.MaxPosts
	}
	return b.names.passing(), passingLife, remote.MaxPassing
}

// Post implements [remote.SlotBackend].
func (b *backend) Post(ctx context.Context, p remote.Post) error {
	set, life, most := b.postsOf(p)
	reply, err := b.runScript(ctx, postScript, []any{2, b.names.notices(), set, p.Text, life, most, postLife})
	if err == nil && reply != "" {
		err = errPosts
	}
	return err
}

// Posts implements [remote.SlotBackend].
func (b *backend) Posts(ctx context.Context, after remote.Cursor) (posts []remote.Received, next remote.Cursor, more bool, err error) {
	text, err := b.runScript(ctx, postsScript, []any{
		2, b.names.notices(), b.names.passing(), after[0], after[1], postLife, passingLife, postsAtOnce,
	})
	if err != nil {
		return nil, after, false, gone(err)
	}
	return readPosts(text)
}

// readPosts reads the reply of postsScript.
func readPosts(text string) (posts []remote.Received, next remote.Cursor, more bool, err error) {
	head, rest, _ := strings.Cut(text, "\n")
	now, last, _, err := twoInts(head)
	if err != nil {
		return nil, next, false, err
	}
	next = remote.Cursor{last, last}
	var read [len(next)]int
	for line := range strings.Lines(rest) {
		set, at, post, err := twoInts(strings.TrimSuffix(line, "\n"))
		if err != nil || set < 1 || set > int64(len(next)) {
			return nil, next, false, errReply
		}
		posts = append(posts, remote.Received{Text: post, Age: time.Duration(now-at) * time.Microsecond})
		if read[set-1]++; read[set-1] == postsAtOnce { // there may be more
			next[set-1], more = at, true
		}
	}
	return posts, next, more, nil
}

// twoInts reads a line that begins with two integers.
func twoInts(line string) (a, b int64, rest string, err error) {
	first, line, _ := strings.Cut(line, " ")
	second, rest, _ := strings.Cut(line, " ")
	if a, err = strconv.ParseInt(first, 10, 64); err == nil {
		b, err = strconv.ParseInt(second, 10, 64)
	}
	if err != nil {
		err = fmt.Errorf("%w: %w", errReply, err)
	}
	return a, b, rest, err
}

// Reply implements [remote.SlotBackend].
func (b *backend) Reply(ctx context.Context, post, process, text string) error {
	_, err := b.runScript(ctx, replyScript, []any{1, b.names.replies(post), process, text, postLife})
	return err
}

// Replies implements [remote.SlotBackend].
func (b *backend) Replies(ctx context.Context, p remote.Post) (all map[string]string, stored bool, err error) {
	set, _, _ := b.postsOf(p)
	pipe := b.client.Pipeline()
	replies, at := pipe.HGetAll(ctx, b.names.replies(p.ID)), pipe.ZScore(ctx, set, p.Text)
	if _, err = pipe.Exec(ctx); errors.Is(err, redis.Nil) {
		err = nil // it is not there
	}
	return replies.Val(), at.Err() == nil, err
}
