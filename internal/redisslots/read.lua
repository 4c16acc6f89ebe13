-- Reads all notices, unless the last of them is known.
--
--   KEYS   as of post.lua
--   ARGV   the id of the last that is known, or ''
--   reply  the id of the last; and each notice with its age in microseconds
local last = redis.call('GET', KEYS[2]) or ''
local reply = {last}
if last == ARGV[1] then return reply end
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
for i, x in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '+inf', 'WITHSCORES')) do
  reply[i + 1] = i % 2 == 0 and now - tonumber(x) or x
end
return reply
