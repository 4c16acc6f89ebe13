package redisstore

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/headgate/headgate/core/internal/remote"
)

// notices is the name of the sorted set of the posts, and replies that of the hash of the
// replies to one. They are in the hash slot of servers.
func (n *namer) notices() string            { return n.prefix + ":{slots}:notices" }
func (n *namer) replies(post string) string { return n.prefix + ":{slots}:replies:" + post }

// The scripts about notices. In the set, the score of a post is the instant of the server, or
// later than that of the post before; #last has the latest, negative.
var (
	//nolint:gochecknoglobals // never changed
	postScript = newScript(`
local key, life, most = KEYS[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local t, last = redis.call('TIME'), redis.call('ZSCORE', key, '#last')
local now = math.max(t[1] * 1000000 + t[2], 1 - tonumber(last or 0))
redis.call('ZADD', key, string.format('%.0f', -now), '#last', string.format('%.0f', now), ARGV[1])
redis.call('ZREMRANGEBYSCORE', key, 0, '(' .. string.format('%.0f', now - life * 1000000))
local over = redis.call('ZCOUNT', key, 0, '+inf') - most
if over > 0 then redis.call('ZREMRANGEBYRANK', key, 1, over) end
redis.call('EXPIRE', key, life)
return ''`)

	// It returns the time, and for each post a line with its instant and its text. If the
	// server has forgotten what was asked for last, or its clock was set back meanwhile, it
	// returns all.
	//nolint:gochecknoglobals // never changed
	postsScript = newScript(`
local key, after, most = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2])
local t, last = redis.call('TIME'), -tonumber(redis.call('ZSCORE', key, '#last') or 0)
local lines = {string.format('%.0f %.0f', math.max(t[1] * 1000000 + t[2], last), last)}
if last < after then after = 0 end
local all = last > after and redis.call('ZRANGEBYSCORE', key, '(' .. string.format('%.0f', after), '+inf', 'WITHSCORES', 'LIMIT', 0, most) or {}
for i = 1, #all, 2 do lines[#lines + 1] = string.format('%.0f ', tonumber(all[i + 1])) .. all[i] end
return table.concat(lines, '\n')`)

	//nolint:gochecknoglobals // never changed
	replyScript = newScript(`
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('EXPIRE', KEYS[1], ARGV[3])
return ''`)
)

const (
	postLife    = int(remote.PostLife / 1e9) // in seconds
	postsAtOnce = 256                        // in a reply
)

// Topic implements [remote.SlotBackend].
func (b *backend) Topic(name, key string) string { return b.names.slots(name, key) }

// Post implements [remote.SlotBackend].
func (b *backend) Post(ctx context.Context, text string) error {
	_, err := b.runScript(ctx, postScript, []any{1, b.names.notices(), text, postLife, remote.MaxPosts})
	return err
}

// Posts implements [remote.SlotBackend].
func (b *backend) Posts(ctx context.Context, after int64) (posts []remote.Post, next int64, err error) {
	text, err := b.runScript(ctx, postsScript, []any{1, b.names.notices(), after, postsAtOnce})
	if err != nil {
		return nil, 0, gone(err)
	}
	return readPosts(text)
}

// readPosts reads the reply of postsScript.
func readPosts(text string) (posts []remote.Post, next int64, err error) {
	head, rest, _ := strings.Cut(text, "\n")
	read, last, _ := strings.Cut(head, " ")
	now, err := strconv.ParseInt(read, 10, 64)
	if err != nil {
		return nil, 0, fmt.Errorf("%w: %w", errReply, err)
	}
	if next, err = strconv.ParseInt(last, 10, 64); err != nil {
		return nil, 0, fmt.Errorf("%w: %w", errReply, err)
	}
	for line := range strings.Lines(rest) {
		instant, post, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		at, err := strconv.ParseInt(instant, 10, 64)
		if err != nil {
			return nil, 0, fmt.Errorf("%w: %w", errReply, err)
		}
		posts = append(posts, remote.Post{Text: post, At: at, Read: now})
	}
	if len(posts) == postsAtOnce { // there may be more
		next = posts[len(posts)-1].At
	}
	return posts, next, nil
}

// Reply implements [remote.SlotBackend].
func (b *backend) Reply(ctx context.Context, post, process, text string) error {
	_, err := b.runScript(ctx, replyScript, []any{1, b.names.replies(post), process, text, postLife})
	return err
}

// Replies implements [remote.SlotBackend].
func (b *backend) Replies(ctx context.Context, post string) (map[string]string, error) {
	return b.client.HGetAll(ctx, b.names.replies(post)).Result()
}
