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
-- isbucket reports whether v begins with the numbers of a token bucket.
local function isbucket(v)
  local limit, period, burst = read('>I7I7I7', v, 1)
  return limit >= 1 and limit <= period and period <= 4503599627370496 and burst >= 1
    and burst * (period / limit) <= 9007199254740992
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
  local LIMIT1, PERIOD1, BURST1, N1, Q1, R1, FULL1, FULLF1 = read('>I7I7I7I7I7I7I7I7', p1, 3)
  local HEADER1 = sub(p1, 3, 23)
local values, ns, out, words = {}, ARGV[2], {}, 0
local got = #KEYS == 1 and {call('GET', KEYS[1])} or call('MGET', unpack(KEYS))
for i = 1, #KEYS, 1 do
do
  local key = KEYS[i + 0]
  local v, intact = got[i + 0], true
  if v == '' then v = false end
  if v then
    intact = #v == 35 and (sub(v, 1, 21) == HEADER1 or isbucket(v))
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
    local t, f, value, life, state = 0, 0
    if v then
      t, f = read('>I7I7', v, 22)
      t = t - now
      if t < 0 then t, f = 0, 0 end
      if sub(v, 1, 21) ~= HEADER1 and sub(v, 1, 14) ~= sub(HEADER1, 1, 14) then
        local limit, period, burst = read('>I7I7I7', v, 1)
        local a, b = limit, period
        while b ~= 0 do
          local rest = a % b -- in one assignment, miniredis would use the new a
          a = b
          b = rest
        end
        local m, q, r = limit / a, div(period, limit), 0
        r = period / a - q * m

        local function cost(c)
          local cr = c * r
          return c * q + div(cr, m), cr % m
        end

        -- muldivup is x*y/z, rounded up, for x <= z <= 2^52: by long multiplication.
        local function muldivup(x, y, z)
          local product, rest, bit = 0, 0, 4503599627370496
          while bit >= 1 do
            product, rest = 2 * product, 2 * rest
            if rest >= z then product, rest = product + 1, rest - z end
            if y >= bit then
              y, rest = y - bit, rest + x
              if rest >= z then product, rest = product + 1, rest - z end
            end
            bit = bit / 2
          end
          return rest > 0 and product + 1 or product
        end

        local most = min(burst, BURST1)
        local overt, overf = cost(most)
        overt, overf = t - overt, f - overf
        if overf < 0 then overt, overf = overt - 1, overf + m end
        if overt < 0 then overt, overf = 0, 0 end
        t, f = t - overt, f - overf
        if f < 0 then t, f = t - 1, f + m end
        local units, hi = 0, most
        while units < hi do
          local mid = units + div(hi - units + 1, 2)
          local ct, cf = cost(mid)
          if ct < t or ct == t and cf <= f then units = mid else hi = mid - 1 end
        end
        local ct, cf = cost(units)
        local part = muldivup((t - ct) * m + f - cf, Q1 * N1 + R1, q * m + r)
        t, f = units * Q1 + div(units * R1, N1) + div(part, N1), units * R1 % N1 + part % N1
        if f >= N1 then t, f = t + 1, f - N1 end
        f = f + muldivup(overf, N1, m)
        if f >= N1 then t, f = t + 1, f - N1 end
        t = t + min(overt, 9007199254740990 - now - t)
        state, life = pack('>I7I7', now + t, f), t + 1
        value = HEADER1 .. state
      end
    end
    local part = n * R1
    f = f + part % N1
    t = t + n * Q1 + (part - part % N1) / N1
    if f >= N1 then t, f = t + 1, f - N1 end
    local ok = t < FULL1 or t == FULL1 and f <= FULLF1
  allowed = allowed and ok
  local converted = life
  if allowed then
    local words = pack('>I7I7', now + t, f)
    value, life, state = HEADER1 .. words, t + 1, words
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
