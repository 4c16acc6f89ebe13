-- Keeps an incarnation alive, and finds out which are dead.
--
--   KEYS[1]  a sorted set. The score of a live incarnation is the fleet's time at which it
--            is dead, that of a tombstone the time of its death, negative; #clock and #last
--            are the fleet's time and the server's as of the last beat.
--   ARGV     the instant (tests only), the incarnation, one to register if that one is
--            gone, how long a beat keeps it alive, how much a beat may advance the
--            fleet's time, how many tombstones to keep at most, the prefix of the names
--            that a registration replaces, how many incarnations to bury, these, and
--            incarnations that were seen: unknown ones live on for as long as after a beat
--   reply    what became of the incarnation, the fleet's time, and the dead, the newest
--            first: one string
--
-- The fleet's time passes only while there are beats, so that an outage or a jump of the
-- server's clock kills no incarnation: a gap in which two beats are missing does not count.
-- All times are in microseconds.
if not KEYS[1] then return '' end -- Check only tries whether it runs
local HOUR = 3600000000
local KEPT = 26 * HOUR -- how long tombstones stay: longer than slots.lua keeps what the dead have stated
local LIFE = 100 * 3600 -- of the set, in seconds: several times longer than any tombstone
local call = redis.call
local key, id, new = KEYS[1], ARGV[2], ARGV[3]
local ttl, step, most, replaces = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7]

local function text(x) return string.format('%.0f', x) end

local function score(member)
  local s = call('ZSCORE', key, member)
  return s and tonumber(s)
end

local now = tonumber(ARGV[1])
if not now then
  local t = call('TIME')
  now = t[1] * 1000000 + t[2]
end
local clock, last = score('#clock') or 1, score('#last') or now
local gap = math.max(now - last, 0)
if gap <= 2 * step then clock = clock + math.min(gap, step) end
call('ZADD', key, text(clock), '#clock', text(now), '#last')

local function bury(member) call('ZADD', key, '-' .. text(clock), member) end

local seen = 9 + tonumber(ARGV[8])
for i = 9, seen - 1 do bury(ARGV[i]) end
for _, member in ipairs(call('ZRANGEBYSCORE', key, 0, '(' .. text(clock))) do
  if string.sub(member, 1, 1) ~= '#' then bury(member) end
end

local function live(member)
  local s = score(member)
  return s and s >= 0
end

local state = 'none'
if id ~= '' then
  if live(id) then
    state = 'live'
    call('ZADD', key, text(clock + ttl), id)
  else
    state = score(id) and 'lost' or 'absent'
  end
end
if state ~= 'live' and new ~= '' then
  if score(new) and not live(new) then
    state = 'spent' -- an incarnation lives once
  else
    if replaces ~= '' then
      for _, member in ipairs(call('ZRANGEBYSCORE', key, 0, '+inf')) do
        if string.sub(member, 1, #replaces) == replaces and member ~= new then bury(member) end
      end
    end
    call('ZADD', key, text(clock + ttl), new)
  end
end

for i = seen, #ARGV do
  if not score(ARGV[i]) then call('ZADD', key, text(clock + ttl), ARGV[i]) end
end

call('ZREMRANGEBYSCORE', key, '(-' .. text(math.max(clock - KEPT, 0)), '(0')
local dead = call('ZCOUNT', key, '-inf', '(0')
if dead > most then call('ZREMRANGEBYRANK', key, most, dead - 1) end
call('EXPIRE', key, LIFE)
return state .. ' ' .. text(clock) .. ' ' .. table.concat(call('ZRANGEBYSCORE', key, '-inf', '(0'), ',')
