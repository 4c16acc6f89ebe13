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
local twins = {}
-- The twin of tokenbucket.go. A value is limit, period, burst, then T, f.

--@helpers
-- isbucket reports whether v begins with the numbers of a token bucket.
local function isbucket(v)
  local limit, period, burst = read('>I7I7I7', v, 1)
  return limit >= 1 and limit <= period and period <= 4503599627370496 and burst >= 1
    and burst * (period / limit) <= 9007199254740992
end
--@end

twins[1] = function(p)
  --@constants LIMIT, PERIOD, BURST, N, Q, R, FULL, FULLF, HEADER
  local LIMIT, PERIOD, BURST, N, Q, R, FULL, FULLF = read('>I7I7I7I7I7I7I7I7', p, 3)
  local HEADER = sub(p, 3, 23)
  --@end
  local twin = {header = HEADER, limit = BURST}

  function twin.intact(v)
    --@intact
    return #v == 35 and (sub(v, 1, 21) == HEADER or isbucket(v))
    --@end
  end

  -- t, f are the use, and then what it would be with the charge.
  function twin.admits(v, n)
    --@admits
    local t, f, value, life, state = 0, 0
    if v then
      t, f = read('>I7I7', v, 22)
      t = t - now
      if t < 0 then t, f = 0, 0 end
      if sub(v, 1, 21) ~= HEADER and sub(v, 1, 14) ~= sub(HEADER, 1, 14) then
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

        local most = min(burst, BURST)
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
        local part = muldivup((t - ct) * m + f - cf, Q * N + R, q * m + r)
        t, f = units * Q + div(units * R, N) + div(part, N), units * R % N + part % N
        if f >= N then t, f = t + 1, f - N end
        f = f + muldivup(overf, N, m)
        if f >= N then t, f = t + 1, f - N end
        t = t + min(overt, 9007199254740990 - now - t)
        state, life = pack('>I7I7', now + t, f), t + 1
        value = HEADER .. state
      end
    end
    local part = n * R
    f = f + part % N
    t = t + n * Q + (part - part % N) / N
    if f >= N then t, f = t + 1, f - N end
    local ok = t < FULL or t == FULL and f <= FULLF
    --@end
    return ok, value, life, state, t, f
  end

  function twin.charge(_, _, _, t, f)
    --@charge
    local words = pack('>I7I7', now + t, f)
    return HEADER .. words, t + 1, words
    --@end
  end

  function twin.giveback(v, at, n)
    if sub(v, 1, 14) ~= sub(HEADER, 1, 14) then return nil end
    local t, f = read('>I7I7', v, 22)
    n = min(n, BURST)
    local backt, backf = n * Q + div(n * R, N) - max(now - at, 0), n * R % N
    if backt >= 0 then
      t, f = t - backt, f - backf
      if f < 0 then t, f = t - 1, f + N end
      if t < 0 then t, f = 0, 0 end
    end
    return HEADER .. pack('>I7I7', t, f), t + 1 - now
  end

  return twin
end
-- The twin of fixedwindow.go. A value is period, then start, count.
twins[2] = function(p)
  --@constants PERIOD, LIMIT, HEADER
  local PERIOD, LIMIT = read('>I7I7', p, 3)
  local HEADER = sub(p, 3, 9)
  --@end
  local twin = {header = HEADER, limit = LIMIT}

  function twin.intact(v)
    --@intact
    return #v == 21 and (sub(v, 1, 7) == HEADER or isperiod(v))
    --@end
  end

  function twin.admits(v, n)
    --@admits
    local current = now - now % PERIOD
    local start, count, value, life, state = current, 0
    if v then
      start, count = read('>I7I7', v, 8)
      if sub(v, 1, 7) ~= HEADER then -- where its events may have happened at the latest
        local last = min(start + read('>I7', v, 1) - 1, max(now, start))
        start = last - last % PERIOD
        state, life = pack('>I7I7', start, count), start + PERIOD - now
        value = HEADER .. state
      end
      if start < current then start, count = current, 0 end
    end
    local ok = n <= LIMIT - count
    --@end
    return ok, value, life, state, start, count
  end

  function twin.charge(_, n, _, start, count)
    --@charge
    local words = pack('>I7I7', start, count + n)
    return HEADER .. words, count > 0 and 0 or start + PERIOD - now, words
    --@end
  end

  function twin.refuse(_, n, _, start, count)
    --@refuse
    local words = pack('>I7I7', start, max(count, min(count + min(n, LIMIT), LIMIT)))
    return HEADER .. words, start + PERIOD - now, words
    --@end
  end

  function twin.giveback(v, at, n)
    if sub(v, 1, 7) ~= HEADER then return nil end
    local start, count = read('>I7I7', v, 8)
    if start == at - at % PERIOD then count = max(count - n, 0) end
    return HEADER .. pack('>I7I7', start, count), start + PERIOD - now
  end

  return twin
end
-- The twin of slidingwindow.go. A value is period, resolution, then start, c0 ... ck.

--@helpers
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
--@end

twins[3] = function(p)
  --@constants PERIOD, K, LIMIT, SPAN, NEVEROVER, MOST, HEADER, WORDS
  local PERIOD, K, LIMIT, SPAN, NEVEROVER, MOST = read('>I7I7I7I7I7I7', p, 3)
  local HEADER, WORDS = sub(p, 3, 16), '>' .. rep('I7', K + 2)
  --@end
  local twin = {header = HEADER, limit = LIMIT}

  function twin.intact(v)
    --@intact
    return #v == 28 + 7 * K and sub(v, 1, 14) == HEADER or #v > 28 and iscounts(v)
    --@end
  end

  -- c are the counts from the newest sub-window on, which begins at start.
  function twin.admits(v, n)
    --@admits
    local current = now - now % SPAN
    local start, c, value, life, state = current
    if v and sub(v, 1, 14) == HEADER then
      c = {read(WORDS, v, 15)}
      start = table.remove(c, 1)
      c[K + 2] = nil -- which some libraries add
    else
      c = {}
      for i = 1, K + 1 do c[i] = 0 end
    end
    if v and sub(v, 1, 14) ~= HEADER then -- each goes where its events may have happened at the latest
      local period, k, newest = read('>I7I7I7', v, 1)
      local span, latest = div(period + k - 1, k), max(now, newest)
      start = latest - latest % SPAN
      for i = 0, k do
        local last = min(newest - i * span + span - 1, latest)
        local back = (start - (last - last % SPAN)) / SPAN
        if back <= K then c[back + 1] = min(c[back + 1] + read('>I7', v, 22 + 7 * i), 9007199254740991) end
      end
      state, life = pack(WORDS, start, unpack(c)), countlife(start, c, SPAN)
      value = HEADER .. state
    end
    local passed = div(max(current - start, 0), SPAN)
    if passed > 0 then
      for i = K + 1, 1, -1 do c[i] = c[i - passed] or 0 end
    end
    start = max(start, current)

    local room, old = LIMIT - n, c[K + 1]
    for i = 1, K do room = room - c[i] end
    local ok = old <= room
    if not ok and room >= 0 and NEVEROVER == 0 then
      ok = atmost(old, SPAN - max(now - start, 0), room, SPAN)
    end
    --@end
    return ok, value, life, state, start, c
  end

  function twin.charge(_, n, _, start, c)
    --@charge
    local lasts = c[1] > 0 and 0 or start + (K + 1) * SPAN - now
    c[1] = c[1] + n
    local words = pack(WORDS, start, unpack(c))
    return HEADER .. words, lasts, words
    --@end
  end

  function twin.refuse(_, n, _, start, c)
    --@refuse
    c[1] = max(c[1], min(c[1] + min(n, MOST), MOST))
    local words = pack(WORDS, start, unpack(c))
    return HEADER .. words, countlife(start, c, SPAN), words
    --@end
  end

  function twin.giveback(v, at, n)
    if sub(v, 1, 14) ~= HEADER then return nil end
    local c = {read(WORDS, v, 15)}
    local start = table.remove(c, 1)
    c[K + 2] = nil
    local back = (start - (at - at % SPAN)) / SPAN
    if back >= 0 and back <= K then c[back + 1] = max(c[back + 1] - n, 0) end
    return HEADER .. pack(WORDS, start, unpack(c)), countlife(start, c, SPAN)
  end

  return twin
end
-- The twin of slidinglog.go. A value is period, first, count, newest, size, then
-- the ring of size entries.
--
-- Of a long log, v is the beginning: the header and so many entries. A ring of no
-- more is read and written whole; a longer one by range, so that a charge reads the
-- beginning and writes the header and an entry, however long the ring is.

--@helpers
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
--@end

twins[4] = function(p)
  --@constants PERIOD, LIMIT, HEADER, NEAR
  local PERIOD, LIMIT = read('>I7I7', p, 3)
  local HEADER, NEAR = sub(p, 3, 9), byte(p, 2) >= 2 and HEAD + 7 * 64 -- v has 64 entries at most
  --@end
  local twin = {header = HEADER, limit = LIMIT, ranged = NEAR}

  function twin.intact(v)
    --@intact
    local first, count, newest, size = 0, 0, 0, 0
    if #v > HEAD and isperiod(v) then first, count, newest, size = read('>I7I7I7I7', v, 8) end
    local whole = HEAD + 7 * size
    return first < size and count <= size and size <= 1048576 and (#v == whole or #v == 483 and #v < whole)
    --@end
  end

  -- grows is the size of the ring that n more units need, if they need another, or 0.
  function twin.grows(v, n, _, _, count, _, size)
    --@grows
    return v and size < LIMIT and count + n > size and max(count + n, min(2 * size, LIMIT)) or 0
    --@end
  end

  -- first and on are the ring without what has expired.
  function twin.admits(v, n, key)
    --@admits
    local first, count, newest, size, oldest = 0, 0, 0, min(LIMIT, 4), 0
    if v then
      first, count, newest, size = read('>I7I7I7I7', v, 8)
      if count > 0 then
        local cut = max(now, newest) - PERIOD
        oldest = at(v, key, first, size, 0)
        if oldest <= cut then
          local dead = expired(v, key, first, count, size, cut)
          first, count = (first + dead) % size, count - dead
          if count > 0 then oldest = at(v, key, first, size, 0) end
        end
      end
    end
    local ok = n <= LIMIT - count
    --@end
    return ok, nil, nil, nil, first, count, newest, size, oldest
  end

  function twin.charge(v, n, key, first, count, newest, size, oldest)
    --@charge
    local latest = max(now, newest)
    if count == 0 then oldest = latest end
    local words = pack('>I7I7I7I7', count + n, 0, oldest, latest)
    return push(v, key, HEADER, first, count, size, n, latest, LIMIT), loglife(v, HEADER, newest, latest, PERIOD), words
    --@end
  end

  function twin.refuse(v, n, key, first, count, newest, size)
    --@refuse
    n = min(n, LIMIT)
    local latest, gone = max(now, newest), max(count + n - max(LIMIT, count), 0)
    first, count = (first + gone) % size, count - gone
    -- What is waited for: entries that stay, or those of now.
    local one, wait = max(count + n - LIMIT, 0), max(count + 2 * n - LIMIT, 0)
    one = one < count and at(v, key, first, size, one) or latest
    wait = wait > 0 and (wait <= count and at(v, key, first, size, wait - 1) or latest) or 0
    local words = pack('>I7I7I7I7', count + n, wait, one, latest)
    return push(v, key, HEADER, first, count, size, n, latest, LIMIT), loglife(v, HEADER, newest, latest, PERIOD), words
    --@end
  end

  function twin.giveback(v, at, n, key)
    local _, _, _, _, first, count, newest, size = twin.admits(v, 1, key)
    if sub(v, 1, 7) ~= HEADER or max(now, newest) - at >= PERIOD or count == 0 then return nil end
    n = min(n, count)
    return push(v, key, HEADER, (first + n) % size, count - n, size, 0, newest, LIMIT), 0
  end

  -- state is the number of entries, and the instants that must expire before n units
  -- fit, before one more does, and before nothing is used.
  function twin.state(v, n, key, first, count, newest, size, oldest)
    --@state
    local wait, one, all, over = 0, 0, 0, count + n - LIMIT
    if count > 0 then
      if over > 0 and over <= count then wait = at(v, key, first, size, over - 1) end
      one, all = oldest, newest
      if count > LIMIT then one = at(v, key, first, size, count - LIMIT) end
    end
    return pack('>I7I7I7I7', count, wait, one, all)
    --@end
  end

  return twin
end
-- The twin of mininterval.go. A value is period, then last, newest.
twins[5] = function(p)
  --@constants PERIOD, HEADER
  local PERIOD = read('>I7', p, 3)
  local HEADER = sub(p, 3, 9)
  --@end
  local twin = {header = HEADER, calls = true} -- it counts calls, not units

  function twin.intact(v)
    --@intact
    return #v == 21 and (sub(v, 1, 7) == HEADER or isperiod(v))
    --@end
  end

  function twin.admits(v)
    --@admits
    local last, newest = 0, 0
    if v then last, newest = read('>I7I7', v, 8) end
    local ok = last == 0 or last + PERIOD <= now
    --@end
    return ok, nil, nil, nil, newest
  end

  function twin.charge(_, _, _, newest)
    --@charge
    newest = max(now, newest)
    local words = pack('>I7I7', newest, newest)
    return HEADER .. words, newest + PERIOD - now, words
    --@end
  end

  function twin.giveback(v, at)
    if sub(v, 1, 7) ~= HEADER then return nil end
    local last, newest = read('>I7I7', v, 8)
    if last == at then last = 0 end
    return HEADER .. pack('>I7I7', last, newest), newest + PERIOD - now
  end

  return twin
end
-- save stores a new value, unless the twin has, and keeps it for half as much again as it
-- counts, so that few writes have to renew that. It never shortens a life, as a limiter of
-- the same name with other numbers may need the longer one; a life of 0 means the present
-- one. In tests with an instant of their own nothing expires.
local function save(key, v, value, life)
  --@save
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
  --@end
  return saved
end
-- Answers questions in order, each all or nothing.
--
-- KEYS: the cells of all questions. ARGV[1]: the instant, for tests, or '' for the
-- server's. ARGV[2]: the questions, which are byte strings:
--
--   mode, number of parts, then for each part: index of its policy, n
--   and to settle, in each part also: at, actual
--
-- A question of mode DENY is refused whatever its policies say.
--
-- ARGV[3] and on: the policies.
--
-- The reply is the instant, then for each part of each question a byte: 1 if the policy
-- admits it, 2 if the question is allowed, 4 if the state follows; and for a settlement
-- the units that found no room. Or, for a whole question, 8 and an error: its length in
-- two bytes, and the text. Or 16 and a number of words: to lay out so many anew is too
-- much for this call, which has other questions; nothing was written for this one, and it
-- is to be sent again.
local PEEK, SETTLE, DENY = 1, 2, 3

local ANOTHER = 'the key holds a value of another kind'

local policies, ranged = {}, false
for i = 3, #ARGV do
  local p = ARGV[i]
  local m = twins[byte(p, 1)](p)
  m.denied = byte(p, 2) % 2 == 1
  ranged = ranged or m.ranged
  policies[i - 3] = m
end

-- values holds what was read, by key, so that a question sees the writes of earlier ones.
local values = {}
if #KEYS > 1 and not ranged then
  local got = call('MGET', unpack(KEYS))
  for i = 1, #KEYS do values[KEYS[i]] = got[i] end
end

local function value(m, key)
  local v = values[key]
  if v == nil then
    if m.ranged then
      v = call('GETRANGE', key, 0, m.ranged - 1)
      if v == '' then v = false end
    else
      v = call('GET', key)
    end
    values[key] = v
  end
  if v and not m.intact(v) then error(ANOTHER, 0) end
  return v
end

local function write(m, key, v, value, life)
  if life then
    if not save(key, v, value, life) then error(ANOTHER, 0) end
    values[key] = nil
    if not m.ranged then values[key] = value end
  end
end

local questions, pos, first = ARGV[2], 1, 1  -- first: the question's first key
local out, last = {pack('>I7', now)}, 1      -- the reply in pieces, and their number
local words = 0                              -- that were laid out anew
local ms, ns, vs, found = {}, {}, {}, {}     -- of the parts; found: what admits returned

local function answer(mode, parts)
  local allowed = mode ~= DENY
  for i = 1, parts do
    local at, key = pos + 8 * (i - 1), KEYS[first + i - 1]
    local m, n = policies[byte(questions, at)], read('>I7', questions, at + 1)
    local v = value(m, key)
    if parts > 1 and not v and call('GET', key) then error(ANOTHER, 0) end -- of another type, or empty
    ms[i], ns[i], vs[i], found[i] = m, n, v, {m.admits(v, n, key)}
    allowed = allowed and found[i][1]
  end
  local before = words
  for i = 1, parts do
    local m = ms[i]
    if m.ranged and mode ~= PEEK and (allowed or m.denied) then
      words = words + m.grows(vs[i], ns[i], nil, unpack(found[i], 5, 8))
    end
  end
  if words > MAXWORDS and #questions > 2 + 8 * parts then
    out[last + 1] = '\16' .. pack('>I7', words - before)
    words, last = before, last + 1
    return
  end
  for i = 1, parts do
    local m, n, v, key = ms[i], ns[i], vs[i], KEYS[first + i - 1]
    local ok, new, life, state, a, b, c, d, e = unpack(found[i], 1, 9)
    if mode == PEEK then
      if allowed then n = 0 end
    elseif allowed or m.denied then
      local converted = life
      new, life, state = (allowed and m.charge or m.refuse)(v, n, key, a, b, c, d, e)
      if life == 0 then life = converted or 0 end
      write(m, key, v, new, life)
    else
      write(m, key, v, new, life)
    end
    if not life then
      if m.state then
        state = m.state(v, n, key, a, b, c, d, e)
      elseif v then
        state = sub(v, #m.header + 1)
      end
    end
    out[last + 1] = char((ok and 1 or 0) + (allowed and 2 or 0) + (state and 4 or 0))
    out[last + 2] = state or ''
    last = last + 2
  end
end

-- settle gives back, or charges what fits, of each part by itself.
local function settle(parts)
  for i = 1, parts do
    local place = pos + 22 * (i - 1)
    local m, key = policies[byte(questions, place)], KEYS[first + i - 1]
    local n, at, actual = read('>I7I7I7', questions, place + 1)
    local v, uncovered = value(m, key), 0
    if m.calls and actual > 0 then
      -- it counts calls, and the call took place
    elseif actual < n then
      if v then write(m, key, v, m.giveback(v, at, n - actual, key)) end
    elseif actual > n then
      local more = actual - n
      local lo, hi = 0, min(more, m.limit)
      while lo < hi do
        local mid = lo + div(hi - lo + 1, 2)
        if m.admits(v, mid, key) then lo = mid else hi = mid - 1 end
      end
      uncovered = more - lo
      if lo > 0 then
        local _, _, converted, _, a, b, c, d, e = m.admits(v, lo, key)
        local new, life = m.charge(v, lo, key, a, b, c, d, e)
        if life == 0 then life = converted or 0 end
        write(m, key, v, new, life)
      end
    end
    out[last + 1] = '\3' .. pack('>I7', uncovered)
    last = last + 1
  end
end

while pos < #questions do
  local mode, parts = byte(questions, pos, pos + 1)
  pos = pos + 2
  local before = last
  local ok, err
  if mode == SETTLE then
    ok, err = pcall(settle, parts)
  else
    ok, err = pcall(answer, mode, parts)
  end
  if not ok then
    if type(err) == 'table' then err = err.err end
    err = tostring(err)
    local text, code = string.match(err, '((%u%u%u+) .*)') -- an error of the server
    if code and code ~= 'WRONGTYPE' and code ~= 'ERR' then return {err = text} end -- such as READONLY or OOM: all questions fail
    for i = before + 1, last do out[i] = nil end -- this question fails alone
    err = sub(err, 1, 200)
    out[before + 1] = '\8' .. char(0, #err) .. err
    last = before + 1
  end
  pos = pos + (mode == SETTLE and 22 or 8) * parts
  first = first + parts
end
return concat(out)
