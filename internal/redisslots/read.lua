-- Reads all notices with their instants, unless the last of them is known.
--
--   KEYS   as of post.lua
--   ARGV   the id of the last that is known, or ''
--   reply  the id of the last; the instant; and each notice with the instant at which it was posted
local last = redis.call('GET', KEYS[2]) or ''
if last == ARGV[1] then return {last} end
local t = redis.call('TIME')
local reply = {last, string.format('%.0f', t[1] * 1000000 + t[2])}
for i, x in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '+inf', 'WITHSCORES')) do
  reply[i + 2] = i % 2 == 0 and string.format('%.0f', tonumber(x)) or x
end
return reply
