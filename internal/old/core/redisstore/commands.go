package redisstore

import (
	"context"
	"fmt"
	"strings"
)

// limitCommands are the commands of the scripts, with arguments that Redis accepts. commands_test.go compares them with
// the scripts.
const limitCommands = "TIME|SET KEY x PX 1000|GET KEY|MGET KEY|GETRANGE KEY 0 0|SETRANGE KEY 0 x|PEXPIRE KEY 1000|DEL KEY"

// mayScript runs commands, one after the other, and returns the errors, each in a line with the
// command. Some may be of the key's type, which does not matter.
var mayScript = newScript(`
local errors = {}
for command in string.gmatch(ARGV[1], '[^|]+') do
  local words = {}
  for word in string.gmatch(command, '%S+') do words[#words + 1] = word == 'KEY' and KEYS[1] or word end
  local reply = redis.pcall(unpack(words))
  if type(reply) == 'table' and reply.err then errors[#errors + 1] = words[1] .. ' ' .. reply.err end
end
return table.concat(errors, '\n')`)

// may returns an error that names those of some commands that this user may not run, or nobody may.
// tag is what the name of a key begins with.
func (b *backend) may(ctx context.Context, tag, commands string) error {
	text, err := b.process(ctx, []any{eval, mayScript.source, 1, tag + ":commands", commands})
	if err != nil {
		return err
	}
	var missing []string
	for line := range strings.Lines(text) {
		if command, reply, _ := strings.Cut(strings.TrimSpace(line), " "); forbidden(replyError(reply)) {
			missing = append(missing, command)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("commands are missing, or not permitted: %s", strings.Join(missing, ", "))
	}
	return nil
}

// A replyError is an error that a script got.
type replyError string

func (e replyError) Error() string { return string(e) }
func (replyError) RedisError()     {}
