-- Keeps an incarnation alive, and finds those that are dead.
--
--   KEYS[1]  a sorted set. The score of an incarnation is the fleet's time at which it is dead, that of
--            a tombstone the time of its death, negative. #clock is the fleet's time, #last the
--            server's, as of the last beat.
--   ARGV     the instant (tests only), the incarnation, whether to register it, how long a beat keeps it
--            alive, by how much a beat may advance the fleet's time, the fleet's time up to which deaths are
--            known, and incarnations that were seen in hashes: unknown ones are registered, and die without beats
--   reply    live, dead or absent; the fleet's time; and who has died since: a day has more dead than a fleet has members
--
-- The fleet's time passes only while there are beats, so an outage or a jump of the server's clock
-- kills nobody: a gap in which two beats are missing does not count. All times are microseconds.
local HOUR = 3600000000
local KEPT = 26 * HOUR -- how long a tombstone stays: longer than a hash
local MOST = 1024 -- tombstones
local LIFE = 100 * 3600 -- of the set, in seconds
local call = redis.call
local key, id, ttl, step = KEYS[1], ARGV[2], tonumber(ARGV[4]), tonumber(ARGV[5])

local function text(x) return string.format('%.0f', x) end
local function score(member) return tonumber(call('ZSCORE', key, member) or nil) end

local now = tonumber(ARGV[1])
if not now then
  local t = call('TIME')
  now = t[1] * 1000000 + t[2]
end
local clock, last = score('#clock') or 1, score('#last') or now
local gap = math.max(now - last, 0)
if gap <= 2 * step then clock = clock + math.min(gap, step) end
call('ZADD', key, text(clock), '#clock', text(now), '#last')

for _, member in ipairs(call('ZRANGEBYSCORE', key, 0, '(' .. text(clock))) do
  if string.sub(member, 1, 1) ~= '#' then call('ZADD', key, '-' .. text(clock), member) end
end

local state = 'live'
local known = score(id)
if known and known < 0 then
  state = 'dead'
elseif not known and ARGV[3] ~= '1' then
  state = 'absent'
else
  call('ZADD', key, text(clock + ttl), id)
end
for i = 7, #ARGV do
  if not score(ARGV[i]) then call('ZADD', key, text(clock + ttl), ARGV[i]) end
end

call('ZREMRANGEBYSCORE', key, '(-' .. text(math.max(clock - KEPT, 0)), '(0')
local asksForAll = ARGV[6] == '0'
local dead = call('ZRANGEBYSCORE', key, '-inf', asksForAll and '(0' or '-' .. ARGV[6])
if asksForAll then call('ZREMRANGEBYRANK', key, MOST, math.max(#dead, 1) - 1) end
call('EXPIRE', key, LIFE)
local reply = {state, text(clock)}
for i = 1, math.min(#dead, MOST) do reply[i + 2] = dead[i] end
return reply
