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
-- product returns a*b exactly, in digits of 2^26 after the first.
local function product(a, b)
  local B = 67108864
  local a0, b0 = a % B, b % B
  local a1, b1 = (a - a0) / B, (b - b0) / B
  local low, mid1, mid2 = a0 * b0, a1 * b0, a0 * b1
  local digit0 = low % B
  local mid = mid1 % B + mid2 % B + (low - digit0) / B
  local digit1 = mid % B
  return a1 * b1 + div(mid1, B) + div(mid2, B) + (mid - digit1) / B, digit1, digit0
end

-- atmost reports a*b <= c*d.
local function atmost(a, b, c, d)
  local x, y = a * b, c * d
  if x < 9007199254740992 and y < 9007199254740992 then return x <= y end
  local x2, x1, x0 = product(a, b)
  local y2, y1, y0 = product(c, d)
  if x2 ~= y2 then return x2 < y2 end
  if x1 ~= y1 then return x1 < y1 end
  return x0 <= y0
end

-- countlife is how long the counts of sub-windows so long will count.
local function countlife(start, c, span)
  for i = 1, #c do
    if c[i] > 0 then return start + (#c + 1 - i) * span - now end
  end
  return 0
end

-- iscounts reports whether v begins with the numbers of a sliding window and is as long
-- as they say.
local function iscounts(v)
  local k = isperiod(v) and read('>I7', v, 8) or 0
  return k >= 1 and k <= 1000 and #v == 28 + 7 * k
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
  local PERIOD1, K1, LIMIT1, SPAN1, NEVEROVER1, MOST1 = read('>I7I7I7I7I7I7', p1, 3)
  local HEADER1, WORDS1 = sub(p1, 3, 16), '>' .. rep('I7', K1 + 2)
local values, ns, out, words = {}, ARGV[2], {}, 0
local got = #KEYS == 1 and {call('GET', KEYS[1])} or call('MGET', unpack(KEYS))
for i = 1, #KEYS, 1 do
do
  local key = KEYS[i + 0]
  local v, intact = got[i + 0], true
  if v == '' then v = false end
  if v then
    intact = #v == 28 + 7 * K1 and sub(v, 1, 14) == HEADER1 or #v > 28 and iscounts(v)
  end
  if not intact then return '' end
  values[key] = v
end
end
for i = 1, #KEYS, 1 do
  local n = 1
  if ns ~= '' then n = read('>I7', ns, 7 * (i - 1) / 1 + 1) end
  local allowed, failed = true, false
do
  local key, value, life, state = KEYS[i + 0]
  local v = values[key]
  if v == nil then v = got[i + 0] end -- it is not known after a write
    local current = now - now % SPAN1
    local start, c, value, life, state = current
    if v and sub(v, 1, 14) == HEADER1 then
      c = {read(WORDS1, v, 15)}
      start = table.remove(c, 1)
      c[K1 + 2] = nil -- which some libraries add
    else
      c = {}
      for i = 1, K1 + 1 do c[i] = 0 end
    end
    if v and sub(v, 1, 14) ~= HEADER1 then -- each goes where its events may have happened at the latest
      local period, k, newest = read('>I7I7I7', v, 1)
      local span, latest = div(period + k - 1, k), max(now, newest)
      start = latest - latest % SPAN1
      for i = 0, k do
        local last = min(newest - i * span + span - 1, latest)
        local back = (start - (last - last % SPAN1)) / SPAN1
        if back <= K1 then c[back + 1] = min(c[back + 1] + read('>I7', v, 22 + 7 * i), 9007199254740991) end
      end
      state, life = pack(WORDS1, start, unpack(c)), countlife(start, c, SPAN1)
      value = HEADER1 .. state
    end
    local passed = div(max(current - start, 0), SPAN1)
    if passed > 0 then
      for i = K1 + 1, 1, -1 do c[i] = c[i - passed] or 0 end
    end
    start = max(start, current)

    local room, old = LIMIT1 - n, c[K1 + 1]
    for i = 1, K1 do room = room - c[i] end
    local ok = old <= room
    if not ok and room >= 0 and NEVEROVER1 == 0 then
      ok = atmost(old, SPAN1 - max(now - start, 0), room, SPAN1)
    end
  allowed = allowed and ok
  local converted = life
  if allowed then
    local lasts = c[1] > 0 and 0 or start + (K1 + 1) * SPAN1 - now
    c[1] = c[1] + n
    local words = pack(WORDS1, start, unpack(c))
    value, life, state = HEADER1 .. words, lasts, words
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
    if saved then values[key] = value else failed = true end
  end
  if not life then
    if v then state = sub(v, #HEADER1 + 1) end
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
