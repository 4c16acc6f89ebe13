-- What the twins in core/step build on.
--
-- Numbers are stored as words of 7 bytes, big endian: every integer up to 2^53-1.
-- read('>I7I7', v, i) returns two words from byte i on, and perhaps a value more;
-- pack('>I7I7', x, y) joins two.
local sub, byte, char, rep, concat = string.sub, string.byte, string.char, string.rep, table.concat
local min, max = math.min, math.max
local call = redis.call

local read, pack
local struct = rawget(_G, 'struct') -- a library that not every server has
if struct then
  read, pack = struct.unpack, struct.pack
else
  function read(format, v, i)
    local out = {}
    for k = 1, (#format - 1) / 2 do
      local a, b, c, d, e, f, g = byte(v, i, i + 6)
      out[k] = (((((a * 256 + b) * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g
      i = i + 7
    end
    return unpack(out)
  end
  function pack(format, ...)
    local out, digits = {}, {}
    for k = 1, (#format - 1) / 2 do
      local x = select(k, ...)
      for i = 7, 1, -1 do
        local digit = x % 256
        digits[i] = char(digit)
        x = (x - digit) / 256
      end
      out[k] = concat(digits)
    end
    return concat(out)
  end
end

local MAXWORDS = 8192 -- that a call may lay out anew, unless it has but one question

local function div(a, b) return (a - a % b) / b end -- exact where a/b would round

-- isperiod reports whether v begins with a period that a policy may have.
local function isperiod(v)
  local period = read('>I7', v, 1)
  return period >= 1 and period <= 4503599627370496
end

local now
local given = ARGV[1] ~= '' -- the instant is given: in tests, whose clock is not the server's
if given then
  now = tonumber(ARGV[1])
else
  local t = call('TIME')
  now = t[1] * 1000000 + t[2]
end

-- twins[algorithm](p) returns the functions of one policy. p is a string: the algorithm, a
-- byte that is 1 if refusals are counted plus 2 if the policy is ranged, and the constants
-- in the order of Step.Constants. v is the stored value, or false. It begins with a header:
-- the numbers that it is kept under.
--
--   header, limit: the header, and the largest charge
--   ranged: v is no more than the value's first bytes
--   intact(v): whether v is a value of this algorithm: its header and its length. The
--     other functions must then raise no error and take no longer than with any other,
--     whatever the rest holds.
--   admits(v, n, key): whether n units fit; if v is converted from other numbers, what
--     even a refusal has to store, as below, or else three times nil; and up to five
--     more results, which the others are called with. It writes nothing.
--   charge(v, n, key, ...), refuse(v, n, key, ...): the new value, or nil if it was
--     written; its life in microseconds, or 0 if that has not grown, unless v was
--     converted; and the state that is replied: the value without the header
--   giveback(v, at, n, key): the same, without n of the units that were charged at the
--     instant at; or nothing
--   grows(v, n, key, ...): of a ranged policy, how many words a charge lays out anew
--   state(v, n, key, ...): the state that is replied if nothing was charged, if that is
--     not the value without the header
--
-- The parts between "--@name" and "--@end" are used in flat scripts too: flat.go has the
-- rules for them.
local HEAD = 35 -- bytes before the ring

-- at returns the i-th oldest entry of a ring, from 0. One that is missing has expired.
local function at(v, key, first, size, i)
  local from = HEAD + 7 * ((first + i) % size)
  if from < #v then return (read('>I7', v, from + 1)) end
  local entry = call('GETRANGE', key, from, from + 6)
  return #entry == 7 and (read('>I7', entry, 1)) or 0
end

-- expired returns how many of the oldest entries have, the first being one of them.
local function expired(v, key, first, count, size, cut)
  local step = 1
  while step < count and at(v, key, first, size, step) <= cut do step = step * 2 end
  local lo, hi = div(step, 2), min(step, count)
  while hi - lo > 1 do
    local mid = lo + div(hi - lo, 2)
    if at(v, key, first, size, mid) <= cut then lo = mid else hi = mid end
  end
  return hi
end

-- push appends n entries, and returns the value if all of it is known. Otherwise it
-- writes them.
local function push(v, key, header, first, count, size, n, newest, limit)
  if not v or count + n > size then -- another ring, oldest entry first
    local live, old = '', size
    if count + n > size then size = max(count + n, min(2 * size, limit)) end
    if v then
      if #v < HEAD + 7 * old then v = call('GET', key) end
      local straight = min(count, old - first)
      live = sub(v, HEAD + 1 + 7 * first, HEAD + 7 * (first + straight)) .. sub(v, HEAD + 1, HEAD + 7 * (count - straight))
    end
    v, first = rep('\0', HEAD) .. live .. rep('\0', 7 * size - #live), 0
  end
  local place, entry = (first + count) % size, pack('>I7', newest)
  local head = header .. pack('>I7I7I7I7', first, count + n, newest, size)
  local known = #v == HEAD + 7 * size
  if known and n == 1 then
    return head .. sub(v, HEAD + 1, HEAD + 7 * place) .. entry .. sub(v, HEAD + 8 + 7 * place)
  end
  local straight = min(n, size - place) -- the rest wraps around
  local wrapped = n - straight
  if known then
    return head .. rep(entry, wrapped) .. sub(v, HEAD + 1 + 7 * wrapped, HEAD + 7 * place)
      .. rep(entry, straight) .. sub(v, HEAD + 1 + 7 * (place + straight))
  end
  call('SETRANGE', key, 0, head)
  if straight > 0 then call('SETRANGE', key, HEAD + 7 * place, rep(entry, straight)) end
  if wrapped > 0 then call('SETRANGE', key, HEAD, rep(entry, wrapped)) end
  return nil
end

-- loglife rounds the end up to quarters of the period, by the clock, so that one write in
-- each quarter has to look at the life that the value has.
local function loglife(v, header, before, newest, period)
  local quarter = max(div(period, 4), 1)
  local start = newest - newest % quarter
  if v and before - before % quarter == start and sub(v, 1, 7) == header then return 0 end
  return start + quarter + period - now
end
-- Answers questions that all ask one limiter, and are alike but for the key and n, as
-- main.lua does, without making functions and tables. flat.go fills in the placeholders.
--
-- KEYS, ARGV[1] and the reply are those of main.lua. ARGV[2]: n of each question, or ''
-- if all are 1. ARGV[3] and on: the policies.
--
-- If a value is not intact, or too much has to be laid out anew, nothing is written and the
-- reply is empty: then the questions are put to main.lua, which fails that of this value
-- alone, or puts some off.
local p1 = ARGV[3]
  local PERIOD1, LIMIT1 = read('>I7I7', p1, 3)
  local HEADER1, NEAR1 = sub(p1, 3, 9), byte(p1, 2) >= 2 and HEAD + 7 * 64 -- v has 64 entries at most
local values, ns, out, words = {}, ARGV[2], {}, 0
local got = nil
for i = 1, #KEYS, 1 do
  local n = 1
  if ns ~= '' then n = read('>I7', ns, 7 * (i - 1) / 1 + 1) end
do
  local key = KEYS[i + 0]
  local v, intact = call('GETRANGE', key, 0, NEAR1 - 1), true
  if v == '' then v = false end
  if v then
    local first, count, newest, size = 0, 0, 0, 0
    if #v > HEAD and isperiod(v) then first, count, newest, size = read('>I7I7I7I7', v, 8) end
    local whole = HEAD + 7 * size
    intact = first < size and count <= size and size <= 1048576 and (#v == whole or #v == 483 and #v < whole)
    local more = v and size < LIMIT1 and count + n > size and max(count + n, min(2 * size, LIMIT1)) or 0
    words = words + more
  end
  if not intact then return '' end
  values[key] = v
end
end
if words > MAXWORDS and #KEYS > 1 then return '' end
for i = 1, #KEYS, 1 do
  local n = 1
  if ns ~= '' then n = read('>I7', ns, 7 * (i - 1) / 1 + 1) end
  local allowed, failed = true, false
do
  local key, value, life, state = KEYS[i + 0]
  local v = values[key]
  if v == nil then v = call('GETRANGE', key, 0, NEAR1 - 1) end -- it is not known after a write
    local first, count, newest, size, oldest = 0, 0, 0, min(LIMIT1, 4), 0
    if v then
      first, count, newest, size = read('>I7I7I7I7', v, 8)
      if count > 0 then
        local cut = max(now, newest) - PERIOD1
        oldest = at(v, key, first, size, 0)
        if oldest <= cut then
          local dead = expired(v, key, first, count, size, cut)
          first, count = (first + dead) % size, count - dead
          if count > 0 then oldest = at(v, key, first, size, 0) end
        end
      end
    end
    local ok = n <= LIMIT1 - count
  allowed = allowed and ok
  local converted = life
  if allowed then
    local latest = max(now, newest)
    if count == 0 then oldest = latest end
    local words = pack('>I7I7I7I7', count + n, 0, oldest, latest)
    value, life, state = push(v, key, HEADER1, first, count, size, n, latest, LIMIT1), loglife(v, HEADER1, newest, latest, PERIOD1), words
  end
  if life then
    if life == 0 then life = converted or 0 end
  local saved, least = true, max((life + 1999 - (life + 999) % 1000) / 1000, 1)
  if given then least = 3600000 end
  local most = least + (least - least % 2) / 2
  if v and life == 0 then
    if value then call('SET', key, value, 'KEEPTTL') end
  elseif not v then
    saved = call('SET', key, value, 'PX', most, 'NX') -- not over a value of another type, which MGET returns as none
  elseif call('PTTL', key) < least then
    if value then call('SET', key, value, 'PX', most) else call('PEXPIRE', key, most) end
  elseif value then
    call('SET', key, value, 'KEEPTTL')
  end
    if saved then values[key] = nil else failed = true end
  end
  if not life then
    local wait, one, all, over = 0, 0, 0, count + n - LIMIT1
    if count > 0 then
      if over > 0 and over <= count then wait = at(v, key, first, size, over - 1) end
      one, all = oldest, newest
      if count > LIMIT1 then one = at(v, key, first, size, count - LIMIT1) end
    end
    state = pack('>I7I7I7I7', count, wait, one, all)
  end
  out[2 * (i + 0) - 1] = ok and (allowed and '\7' or '\5') or '\4'
  if not state then
    out[2 * (i + 0) - 1] = ok and (allowed and '\3' or '\1') or '\0'
  end
  out[2 * (i + 0)] = state or ''
end
  if failed then
    for k = 2 * i, 2 * (i + 1 - 1) do out[k] = '' end
    out[2 * i - 1] = '\8\0\0'
  end
end
return pack('>I7', now) .. concat(out)
