-- Put together by TestScriptIsAssembled from core/redisstore/lua and core/step: edit those.
--
-- Answers questions in order, each all or nothing.
--
-- KEYS: the cells of all questions. ARGV[1]: the instant, for tests, or '' for the server's.
-- ARGV[2]: a byte for each algorithm: 1 if a question uses it, 2 if it reads a value in parts,
-- or 0; then the questions. ARGV[3]: the numbers of the policies, one after the other.
--
-- The questions are byte strings:
--
--   mode, number of parts, bytes of a part, then the parts: algorithm, 1 if it counts what is
--   refused or 0, 1 if its values are read in parts or 0, which key it is about, from 1, and in
--   two bytes where in numbers its policy is, from 1; then, unless n is 1: n; and to settle, also:
--   at, actual. In mode + EXTRA the parts are followed by how many units more to charge, as far as
--   all policies admit them
--
-- A question of mode DENY is refused whatever its policies say.
--
-- The reply is the instant, then for each part of each question a byte: 1 if the policy
-- admits it, 2 if the question is allowed, 4 if the state follows; and for a settlement
-- the units that found no room. If an EXTRA was allowed, the number that was charged follows
-- the first byte. Or, for a whole question, 8 and an error: its length in
-- two bytes, and the text. Or 16 and a number of words: to lay out so many anew is too
-- much for this call, which has other questions; nothing was written for this one, and it
-- is to be sent again.
--
-- To define functions takes a server as long as to decide. So what most questions need is in
-- one piece, into which the twins of the steps, in core/step, are put; and the rest is defined
-- when it is needed. These are the parts of a twin. The policy's numbers are in the string
-- numbers from byte place on, as words, in the order of Step.Constants. own is the policy's
-- value, which begins with the numbers that it is kept under, or no more than its beginning
-- if it is read in parts, or false; key is its name.
--
--   helpers: what the others need, before all questions
--   admits: sets ok to whether n units fit, and a to h for the parts below. Or it leaves ok nil,
--     if own is not a value under these numbers: if these, or its length, are others. If it is
--     one, then whatever the rest of it holds, this and the others raise no error and take no
--     longer than with any other. It writes nothing. Unless others is set, it leaves ok nil
--     also if own is ahead of now by more than Step.Window: then take brings it back.
--   charge, refuse: set new to the new value, or nil if they have written it; life, for which
--     it counts, in microseconds, or 0 if that has not grown; and state, which is replied, as
--     step.ReadTwin expects it. Charge may set patch instead of new, unless others is set: life is
--     0, and no more of the value changes than some bytes from PATCHED[algorithm] on. refuse is for
--     policies that count what is refused.
--   state: sets state, if there is one, where nothing was charged
--   grows: if read in parts, sets more to the words that a charge lays out anew, if any
--   size: if read in parts, sets more to the words of the whole value, if there is one
--   rare: adds the functions that are rarely needed to the table rare

-- Numbers are stored as words of 7 bytes, big endian: every integer up to 2^53-1.
-- read('>I7I7', v, i) returns two words from byte i on, and perhaps a value more;
-- pack('>I7I7', x, y) joins two.
local sub, find, byte, char, rep, concat = string.sub, string.find, string.byte, string.char, string.rep, table.concat
local min, max = math.min, math.max
local call, try = redis.call, redis.pcall

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

local MAXLOG = 16384 -- units of a log

local BEGINNING = 490 -- bytes that are read of a long log: its header and 64 entries

local ANOTHER = 'the key holds a value of another kind'

local PATCHED = {'21', '7', '14'} -- the bytes before those that most charges change: the numbers

local function div(a, b) return (a - a % b) / b end -- exact where a/b would round

local now
local given = ARGV[1] ~= '' -- the instant is given: in tests, whose clock is not the server's
if given then
  now = tonumber(ARGV[1])
else
  local t = call('TIME')
  now = t[1] * 1000000 + t[2]
end

local questions, numbers = ARGV[2], ARGV[3]
local used = sub(questions, 1, 5)

-- The numbers that were read last, and their place. Questions mostly follow others like them.
local bucketPlace, bucketLimit, bucketPeriod, bucketBurst, q, full, per, r, fullf, quarter

-- The numbers that were read last, and their place. Questions mostly follow others like them.
local fixedPlace, fixedOf, fixedPeriod, fixedLimit
local FROMFIRST = 4503599627370496

local atmost, countlife, pushed
if byte(used, 3) > 0 then
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
  function atmost(a, b, c, d)
    local x, y = a * b, c * d
    if x < 9007199254740992 and y < 9007199254740992 then return x <= y end
    local x2, x1, x0 = product(a, b)
    local y2, y1, y0 = product(c, d)
    if x2 ~= y2 then return x2 < y2 end
    if x1 ~= y1 then return x1 < y1 end
    return x0 <= y0
  end

  -- countlife is how long the counts of sub-windows so long will count.
  function countlife(start, c, span)
    for i = 1, #c do
      if c[i] > 0 then return start + (#c + 1 - i) * span - now end
    end
    return 0
  end

  -- pushed returns the value with so many passed since its newest, and that count as the newest.
  function pushed(v, place, start, count, passed)
    local k = read('>I7', numbers, place + 7)
    local counts = rep('\0', 7 * (passed - 1)) .. sub(v or '', passed > 0 and 22 or 29, 28 + 7 * k - 7 * passed)
    return sub(numbers, place, place + 13) .. pack('>I7I7', start, count) .. counts
  end
end

-- The numbers that were read last, and their place. Questions mostly follow others like them.
local windowPlace, windowPeriod, k, windowLimit, span, neverover, formatted, format

local HEAD = 42  -- bytes before the ring
local WHOLE = 16 -- entries of a ring that is written whole: that is one command instead of two
local at, expired, push, loglife
if byte(used, 4) > 0 then
  -- at returns the i-th oldest entry of a ring, from 0. One that is missing has expired.
  function at(v, key, first, size, i)
    local from = HEAD + 7 * ((first + i) % size)
    if from < #v then return (read('>I7', v, from + 1)) end
    local entry = call('GETRANGE', key, from, from + 6)
    return #entry == 7 and (read('>I7', entry, 1)) or 0
  end

  -- expired returns how many of the oldest entries have, the first being one of them.
  function expired(v, key, first, count, size, cut)
    local step = 1
    while step < count and at(v, key, first, size, step) <= cut do step = step * 2 end
    local lo, hi = (step - step % 2) / 2, step < count and step or count
    while hi - lo > 1 do
      local mid = lo + div(hi - lo, 2)
      if at(v, key, first, size, mid) <= cut then lo = mid else hi = mid end
    end
    return hi
  end

  -- push appends n entries to the value of a key, and returns it, or writes what changes. It
  -- returns it if there is no key: then all of v is known.
  function push(v, key, of, most, first, count, size, n, newest)
    local whole = not key or size <= WHOLE
    if not v or count + n > size then -- another ring, oldest entry first
      whole = true
      local live, old = '', size
      if count + n > size then size = max(count + n, min(2 * size, most)) end
      if v then
        if #v < HEAD + 7 * old then v = call('GET', key) end
        local straight = min(count, old - first)
        live = sub(v, HEAD + 1 + 7 * first, HEAD + 7 * (first + straight)) .. sub(v, HEAD + 1, HEAD + 7 * (count - straight))
      end
      v, first = rep('\0', HEAD) .. live .. rep('\0', 7 * size - #live), 0
    end
    local place, entry = (first + count) % size, pack('>I7', newest)
    local head = pack('>I7I7I7I7I7I7', of, most, first, count + n, newest, size)
    if whole and n == 1 then
      return head .. sub(v, HEAD + 1, HEAD + 7 * place) .. entry .. sub(v, HEAD + 8 + 7 * place)
    end
    local straight = min(n, size - place) -- the rest wraps around
    local wrapped = n - straight
    if whole then
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
  function loglife(v, before, newest, period)
    local quarter = period < 8 and 1 or (period - period % 4) / 4
    local start = newest - newest % quarter
    if v and before - before % quarter == start then return 0 end
    return start + quarter + period - now
  end
end

-- The numbers that were read last, and their place. Questions mostly follow others like them.
local logPlace, logPeriod, logLimit

local out, last = {pack('>I7', now)}, 1 -- the reply in pieces, and their number
local words = 0                         -- that were laid out anew

-- values has what is known to be stored, by cell.
local keys, values = KEYS, {}
local inpart = find(used, '\2', 1, true) -- a value may be the beginning of a long log
if #keys > 1 and not inpart then values = call('MGET', unpack(keys)) end

local PEEK, SETTLE, DENY, EXTRA = 1, 2, 3, 4
local pos = #used + 1 -- where the next question is
local missing         -- whether it needs functions that are not defined yet; then it begins again
local admits, most, take, join, settle

repeat
  if missing then
    missing = false
    -- rare has functions of each algorithm that is used. They are called with a whole value of
    -- the policy's own, or the beginning of a long log, and the place of the policy's numbers.
    --
    --   alike: so many bytes are the same in every value that means the same under these numbers
    --   most(place): the largest charge; missing if it counts calls, not units
    --   giveback(own, at, n, key, place): the new value and its life, as of a charge, without n of
    --     the units that were charged at the instant at
    --
    -- And these are for whole values under any numbers, as the methods of step.Step:
    --
    --   intact(v): whether v is a value of this algorithm
    --   adopt(v, place): the value of the policy with the usage of v
    --   redate(v, place, longest): v, or if it is ahead of now, full use as of now
    --   enlarge(v, place): v, kept for a limit no smaller than that of the policy; of some algorithms
    --   count(v, n, till)
    --   lasts(v): the instant from which it is fresh, its window, and how much it shows
    local rare = {}

    -- isperiod reports whether v begins with a period that a policy may have.
    local function isperiod(v)
      local period = read('>I7', v, 1)
      return period >= 1 and period <= 4503599627370496
    end

    -- others is what take has returned, or something else unless the value may be ahead of now.
    function admits(algorithm, own, n, key, place, others)
      local ok, a, b, c, d, e, f, g, h
      if algorithm == 1 then -- tb2
        -- t, f are the use, and then what it would be with the charge. c is the burst that the value is
        -- kept for, d the T under the same numbers, if there is one, and e more than a quarter of the
        -- time in which it fills.
        if place ~= bucketPlace then
          local divisor
          bucketPlace, bucketLimit, bucketPeriod, bucketBurst, divisor = place, read('>I7I7I7I7', numbers, place)
          per, q = bucketLimit / divisor, bucketPeriod / divisor
          r = q % per
          q = (q - r) / per
          full = bucketBurst * r
          fullf = full % per
          full = bucketBurst * q + (full - fullf) / per
          quarter = (full - full % 4) / 4 + 1
        end
        local limit, period, burst, t, f = bucketLimit, bucketPeriod, bucketBurst, now, 0
        d, e = nil, quarter
        if own then
          limit = nil
          if #own == 35 then limit, period, burst, t, f = read('>I7I7I7I7I7', own, 1) end
          if burst == bucketBurst then
            d = t
          elseif burst < bucketBurst then
            burst = bucketBurst
          else
            e = min(div(q * burst + burst, 4) + 2, 2251799813685248) -- 2^51: a value may be garbage
          end
        end
        t = t - now
        if limit == bucketLimit and period == bucketPeriod and (others or t <= 2 * full) then
          if t < 0 then t, f = 0, 0 end
          local part = n * r
          f = f + part % per
          t = t + n * q + (part - part % per) / per
          if f >= per then t, f = t + 1, f - per end
          ok, a, b, c = t < full or t == full and f <= fullf, t, f, burst
        end
      elseif algorithm == 2 then -- fw2
        if place ~= fixedPlace then
          fixedPlace, fixedOf, fixedLimit = place, read('>I7I7', numbers, place)
          fixedPeriod = fixedOf > FROMFIRST and fixedOf - FROMFIRST or fixedOf
        end
        local of, start, count = fixedOf, 0, 0
        if own then
          if #own == 21 then of, start, count = read('>I7I7I7', own, 1) else of = nil end
        end
        if of == fixedOf and (others or start - now <= fixedPeriod) then
          if start <= now and (count == 0 or start + fixedPeriod <= now) then
            start, count = of == fixedPeriod and now - now % of or now, 0
          end
          ok, a, b, c, d, e = n <= fixedLimit - count, start, count, fixedPeriod, fixedLimit, of
        end
      elseif algorithm == 3 then -- sw2
        -- a is the start of the present sub-window, b its count, and c how many have passed since the
        -- newest of the value; d is for how long a count counts.
        if place ~= windowPlace then
          windowPlace, windowPeriod, k, windowLimit, span, neverover = place, read('>I7I7I7I7I7', numbers, place)
          if k ~= formatted then formatted, format = k, '>' .. rep('I7', k + 4) end
        end
        local start, counts = now - now % span
        local room, old, first, passed = windowLimit - n, 0, 0, k + 1
        if own then
          if #own == 28 + 7 * k then counts = {read(format, own, 1)} end -- from the fourth on
          if counts and counts[1] == windowPeriod and counts[2] == k and (others or counts[3] - now <= (k + 1) * span) then
            passed = 0
            if counts[3] >= start then
              start, first = counts[3], counts[4]
            else
              passed = min(div(start - counts[3], span), k + 1)
            end
            for i = 4, k + 3 - passed do room = room - counts[i] end
            if passed <= k then old = counts[k + 4 - passed] end
          else
            start = nil
          end
        end
        if start then
          ok = old <= room
          if not ok and room >= 0 and neverover == 0 then
            ok = atmost(old, span - max(now - start, 0), room, span)
          end
          a, b, c, d = start, first, passed, (k + 1) * span
        end
      elseif algorithm == 4 then -- sl2
        -- first and on are the ring without what has expired.
        if place ~= logPlace then
          logPlace, logPeriod, logLimit = place, read('>I7I7', numbers, place)
        end
        local period, limit = logPeriod, logLimit
        local of, most, first, count, newest, size, oldest = period, limit, 0, 0, 0, limit < 4 and limit or 4, 0
        if own then
          of = nil
          if #own > HEAD then of, most, first, count, newest, size = read('>I7I7I7I7I7I7', own, 1) end
          local whole = HEAD + 7 * size
          if first >= size or count > size or size > MAXLOG or most > MAXLOG or #own ~= whole and (#own ~= BEGINNING or #own > whole) then of = nil end
        end
        if of == period and (others or newest - now <= of) then
          if most < limit then most = limit end
          if count > 0 then
            local cut = (now > newest and now or newest) - period
            oldest = at(own, key, first, size, 0)
            if oldest <= cut then
              local dead = expired(own, key, first, count, size, cut)
              first, count = (first + dead) % size, count - dead
              if count > 0 then oldest = at(own, key, first, size, 0) end
            end
          end
          ok, a, b, c, d, e, f, g, h = n <= limit - count, most, first, count, newest, size, oldest, period, limit
        end
      elseif algorithm == 5 then -- mi2
        local period = read('>I7', numbers, place)
        local of, last, newest = period, 0, 0
        if own then
          if #own == 21 then of, last, newest = read('>I7I7I7', own, 1) else of = nil end
        end
        if of == period and (others or newest - now <= of) then
          ok, a, b = last == 0 or last + period <= now, newest, period
        end
      end
      return ok, a, b, c, d, e, f, g, h
    end

    local function charge(algorithm, own, n, key, place, others, _, a, b, c, d, e, f, g, h)
      local new, life, state, patch
      if algorithm == 1 then -- tb2
        local till = now + a
        state = pack('>I7I7', till, b)
        if d and d - d % e == till - till % e then
          life, patch = 0, state
        else
          -- The life goes beyond the end of the quarter that T is in, by the clock, so that one write in
          -- each quarter has to look at the life that the value has.
          life = a + e + 1
        end
        if others or not patch then new = sub(numbers, place, place + 13) .. pack('>I7', c) .. state end
      elseif algorithm == 2 then -- fw2
        state = pack('>I7I7', a, b + n)
        if b > 0 then life, patch = 0, state else life = a + c - now end
        if others or not patch then new = pack('>I7', e) .. state end
      elseif algorithm == 3 then -- sw2
        if b > 0 then life, patch = 0, pack('>I7I7', a, b + n) end
        if others or not patch then new, life = pushed(own, place, a, b + n, c), life or a + d - now end
        state = own
      elseif algorithm == 4 then -- sl2
        local latest = now > d and now or d
        state = pack('>I7I7I7I7', c + n, 0, c == 0 and latest or f, latest)
        new, life = push(own, not others and key, g, a, b, c, e, n, latest), loglife(own, d, latest, g)
      elseif algorithm == 5 then -- mi2
        local newest = max(now, a)
        state = pack('>I7I7', newest, newest)
        new, life = sub(numbers, place, place + 6) .. state, newest + b - now
      end
      return new, life
    end

    -- most returns the largest number from lo to hi that a policy admits. It admits lo.
    function most(algorithm, own, key, place, lo, hi)
      if admits(algorithm, own, hi, key, place, true) then return hi end -- mostly
      while lo < hi do
        local mid = lo + div(hi - lo + 1, 2)
        if admits(algorithm, own, mid, key, place, true) then lo = mid else hi = mid - 1 end
      end
      return lo
    end

    -- save returns an error, or nothing.
    local function save(algorithm, cell, key, v, new, life, inparts)
      local failed, patch
      -- A new value, unless it was written, is kept for half as much again as it counts, so that few
      -- writes have to renew that. A life is never shortened, as a limiter of the same name with
      -- other numbers may need the longer one; a life of 0 means the present one. In tests with an
      -- instant of their own nothing expires.
      -- An error, such as READONLY or OOM, is that of the whole call.
      local done
      if v and life == 0 then
        if patch then
          done = try('SETRANGE', key, PATCHED[algorithm], patch)
        elseif new then
          done = try('SET', key, new, 'KEEPTTL')
        end
      else
        local least = life > 0 and (life + 1999 - (life + 999) % 1000) / 1000 or 1
        if given then least = 3600000 end
        local most = least + (least - least % 2) / 2
        if not v then -- not over a value of another type, which MGET returns as none
          done = try('SET', key, new, 'PX', most, 'NX')
          if not done then failed = ANOTHER end
        elseif call('PTTL', key) >= least then
          if new then done = try('SET', key, new, 'KEEPTTL') end
        elseif new then
          done = try('SET', key, new, 'PX', most)
        else
          call('PEXPIRE', key, most)
        end
      end
      if type(done) == 'table' and done.err then return done end
      if failed or inparts == 1 then values[cell] = nil else values[cell] = new end
      return failed
    end

    if byte(used, 1) > 0 then
      -- muldiv returns x*y/z and the remainder, for x <= z <= 2^52, y < 2^53: by long
      -- multiplication.
      local function muldiv(x, y, z)
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
        return product, rest
      end

      -- bucket returns n, p, q, r of a value, the time in which an empty one fills, and used, f.
      local function bucket(v)
        local limit, period, burst, t, f = read('>I7I7I7I7I7', v, 1)
        local a, b = limit, period
        while b ~= 0 do
          local rest = a % b -- in one assignment, miniredis would use the new a
          a = b
          b = rest
        end
        local n, p = limit / a, period / a
        local q = div(p, n)
        local r = p - q * n
        local full, rest = muldiv(r, burst, n)
        if rest > 0 then full = full + 1 end
        t = t - now
        if t < 0 then t, f = 0, 0 end
        return n, p, q, r, burst * q + full, t, f
      end

      local function count(v, units, till)
        local n, p, q, r, full, t, f = bucket(v)
        local most = max(full, till - now)
        if t < most then
          local sum, sumf = most, 0
          if units <= muldiv(n, most, p) then
            local more, moref = muldiv(r, units, n)
            more, moref = t + units * q + more, f + moref
            if moref >= n then more, moref = more + 1, moref - n end
            if more < most then sum, sumf = more, moref end
          end
          t, f = sum, sumf
        end
        return sub(v, 1, 21) .. pack('>I7I7', now + t, f)
      end

      local function lasts(v)
        local t, f = read('>I7I7', v, 22)
        local n, p, _, _, full, used, part = bucket(v)
        local units, rest = muldiv(n, used, p)
        return f > 0 and t + 1 or t, full, rest + part >= p and units + 1 or units
      end

      rare[1] = {
        alike = 14,
        most = function(place) return (read('>I7', numbers, place + 14)) end,

        giveback = function(own, at, n, key, place)
          local _, _, _, most, _, more = admits(1, own, 1, key, place, true)
          local limit, period, burst, divisor = read('>I7I7I7I7', numbers, place)
          local t, f = read('>I7I7', own, 22)
          local per, p = limit / divisor, period / divisor
          local r = p % per
          local q = (p - r) / per
          n = min(n, burst)
          local backt, backf = n * q + div(n * r, per) - max(now - at, 0), n * r % per
          if backt >= 0 then
            t, f = t - backt, f - backf
            if f < 0 then t, f = t - 1, f + per end
            if t < 0 then t, f = 0, 0 end
          end
          return sub(own, 1, 14) .. pack('>I7I7I7', most, t, f), t + more + 1 - now
        end,

        intact = function(v)
          if #v ~= 35 then return false end
          local limit, period, burst = read('>I7I7I7', v, 1)
          return limit >= 1 and limit <= period and period <= 4503599627370496 and burst >= 1
            and burst * (period / limit) <= 9007199254740992
        end,

        adopt = function(v, place)
          local n, per, _, _, _, t, f = bucket(v)
          local units, part = muldiv(n, t, per)
          if part + f > 0 then units = units + 1 end
          if part + f > per then units = units + 1 end
          return count(sub(numbers, place, place + 20) .. pack('>I7I7', 0, 0), units, (lasts(v)))
        end,

        redate = function(v, _, longest)
          local n, _, q, r, full, used = bucket(v)
          if used <= full + max(full, longest) then return v end
          local burst = read('>I7', v, 15)
          local more, part = muldiv(r, burst, n)
          return sub(v, 1, 21) .. pack('>I7I7', now + burst * q + more, part)
        end,

        enlarge = function(v, place)
          return read('>I7', numbers, place + 14) > read('>I7', v, 15) and sub(numbers, place, place + 20) .. sub(v, 22) or v
        end,

        count = count,
        lasts = lasts,
      }
    end

    if byte(used, 2) > 0 then
      -- window returns the period of a value, its start and count, and the value's beginning.
      local function window(v)
        local period, start, count = read('>I7I7I7', v, 1)
        if period > FROMFIRST then period = period - FROMFIRST end
        return period, start, count, sub(v, 1, 7)
      end

      -- begin returns the start of the window that an instant is in, if none is open.
      local function begin(of, at)
        local period = read('>I7', of, 1)
        return period > FROMFIRST and at or at - at % period
      end

      local function lasts(v)
        local period, start, count = window(v)
        return count > 0 and start + period or start, period, period
      end

      rare[2] = {
        alike = 7,
        most = function(place) return (read('>I7', numbers, place + 7)) end,

        giveback = function(own, at, n)
          local period, start, count, of = window(own)
          if start <= at and at < start + period then count = max(count - n, 0) end
          return of .. pack('>I7I7', start, count), start + period - now
        end,

        intact = function(v)
          local period = #v == 21 and window(v) or 0
          return period >= 1 and period <= FROMFIRST
        end,

        -- adopt puts the count where its events may have happened at the latest.
        adopt = function(v, place)
          local from, start, count = window(v)
          local last, of = min(start + from - 1, max(now, start)), sub(numbers, place, place + 6)
          return of .. pack('>I7I7', begin(of, last), count)
        end,

        redate = function(v, place)
          local period, start, count, of = window(v)
          if start - now <= period then return v end
          return of .. pack('>I7I7', begin(of, now), max(count, (read('>I7', numbers, place + 7))))
        end,

        count = function(v, n)
          local _, start, count, of = window(v)
          if lasts(v) <= now then start, count = begin(of, now), 0 end
          return of .. pack('>I7I7', start, min(count + n, 9007199254740991))
        end,

        lasts = lasts,
      }
    end

    if byte(used, 3) > 0 then
      rare[3] = {
        alike = 14,
        most = function(place) return (read('>I7', numbers, place + 14)) end,

        giveback = function(own, at, n, _, place)
          local k, _, span = read('>I7I7I7', numbers, place + 7)
          local format = '>' .. rep('I7', k + 2)
          local c = {read(format, own, 15)}
          local start = table.remove(c, 1)
          c[k + 2] = nil
          local back = (start - (at - at % span)) / span
          if back >= 0 and back <= k then c[back + 1] = max(c[back + 1] - n, 0) end
          return sub(own, 1, 14) .. pack(format, start, unpack(c)), countlife(start, c, span)
        end,

        intact = function(v)
          local k = #v > 28 and isperiod(v) and read('>I7', v, 8) or 0
          return k >= 1 and k <= 1000 and #v == 28 + 7 * k
        end,

        -- adopt puts each count where its events may have happened at the latest.
        adopt = function(v, place)
          local from, fromk, newest = read('>I7I7I7', v, 1)
          local fromspan, k, _, span = div(from + fromk - 1, fromk), read('>I7I7I7', numbers, place + 7)
          local latest = max(now, newest)
          local start, c = latest - latest % span, {}
          for i = 1, k + 1 do c[i] = 0 end
          for i = 0, fromk do
            local last = min(newest - i * fromspan + fromspan - 1, latest)
            local back = (start - (last - last % span)) / span
            if back <= k then c[back + 1] = min(c[back + 1] + read('>I7', v, 22 + 7 * i), 9007199254740991) end
          end
          return sub(numbers, place, place + 13) .. pack('>' .. rep('I7', k + 2), start, unpack(c))
        end,

        redate = function(v, place)
          local period, k, start = read('>I7I7I7', v, 1)
          local span, sum = div(period + k - 1, k), 0
          if start - now <= (k + 1) * span then return v end
          for i = 0, k do sum = sum + read('>I7', v, 22 + 7 * i) end
          sum = min(max(sum, (read('>I7', numbers, place + 14))), 9007199254740991)
          return sub(v, 1, 14) .. pack('>I7I7', now - now % span, sum) .. rep('\0', 7 * k)
        end,

        count = function(v, n)
          local period, k, start = read('>I7I7I7', v, 1)
          local span, counts = div(period + k - 1, k), sub(v, 22)
          local current = now - now % span
          local passed = min(max(div(current - start, span), 0), k + 1)
          counts = rep('\0', 7 * passed) .. sub(counts, 1, 7 * (k + 1 - passed))
          local first = min(read('>I7', counts, 1) + n, 9007199254740991)
          return sub(v, 1, 14) .. pack('>I7I7', max(start, current), first) .. sub(counts, 8)
        end,

        lasts = function(v)
          local period, k, start = read('>I7I7I7', v, 1)
          local span, fresh = div(period + k - 1, k), start
          for i = 0, k do
            if read('>I7', v, 22 + 7 * i) > 0 then
              fresh = start + (k + 1 - i) * span
              break
            end
          end
          return fresh, (k + 1) * span, (k + 1) * span
        end,
      }
    end

    if byte(used, 4) > 0 then
      rare[4] = {
        alike = 7,
        most = function(place) return (read('>I7', numbers, place + 7)) end,

        giveback = function(own, at, n, key, place)
          local _, most, first, count, newest, size, _, period = admits(4, own, 1, key, place, true)
          if max(now, newest) - at >= period or count == 0 then -- only most may change
            n, first, count = 0, read('>I7I7', own, 15)
          end
          n = min(n, count)
          return push(own, key, period, most, (first + n) % size, count - n, size, 0, newest), 0
        end,

        intact = function(v)
          if #v <= HEAD or not isperiod(v) then return false end
          local most, first, count, _, size = read('>I7I7I7I7I7', v, 8)
          return first < size and count <= size and most <= MAXLOG and #v == HEAD + 7 * size
        end,

        -- adopt copies the newest entries, as many as decide.
        adopt = function(v, place)
          local period, limit = read('>I7I7', numbers, place)
          local first, count, newest, size = read('>I7I7I7I7', v, 15)
          local n = min(count, limit)
          first = (first + count - n) % size
          local straight = min(n, size - first) -- the rest wraps around
          local entries = sub(v, HEAD + 1 + 7 * first, HEAD + 7 * (first + straight)) .. sub(v, HEAD + 1, HEAD + 7 * (n - straight))
          size = max(n, min(limit, 4))
          return pack('>I7I7I7I7I7I7', period, limit, 0, n, newest, size) .. entries .. rep('\0', 7 * (size - n))
        end,

        enlarge = function(v, place)
          local most, limit = read('>I7', v, 8), read('>I7', numbers, place + 7)
          return sub(v, 1, 7) .. pack('>I7', max(most, limit)) .. sub(v, 15)
        end,

        redate = function(v, place)
          local period, most, _, count, newest = read('>I7I7I7I7I7', v, 1)
          if newest - now <= period then return v end
          count = max(count, (read('>I7', numbers, place + 7)))
          return pack('>I7I7I7I7I7I7', period, most, 0, count, now, count) .. rep(pack('>I7', now), count)
        end,

        -- count keeps the newest entries, of more than the largest limit.
        count = function(v, n)
          local period, most, first, count, newest, size = read('>I7I7I7I7I7I7', v, 1)
          local latest = max(now, newest)
          if count > 0 and at(v, nil, first, size, 0) <= latest - period then
            local dead = expired(v, nil, first, count, size, latest - period)
            first, count = (first + dead) % size, count - dead
          end
          n = min(n, most)
          local gone = max(count + n - max(most, count), 0)
          return push(v, nil, period, most, (first + gone) % size, count - gone, size, n, latest)
        end,

        lasts = function(v)
          local period, _, first, count, newest, size = read('>I7I7I7I7I7I7', v, 1)
          return count > 0 and at(v, nil, first, size, count - 1) + period or newest, period, period
        end,
      }
    end

    if byte(used, 5) > 0 then
      rare[5] = {
        alike = 7,

        giveback = function(own, at)
          local period, last, newest = read('>I7I7I7', own, 1)
          if last == at then last = 0 end
          return sub(own, 1, 7) .. pack('>I7I7', last, newest), newest + period - now
        end,

        intact = function(v) return #v == 21 and isperiod(v) end,

        adopt = function(v, place) return sub(numbers, place, place + 6) .. sub(v, 8) end,

        redate = function(v)
          local period, _, newest = read('>I7I7I7', v, 1)
          return newest - now > period and sub(v, 1, 7) .. pack('>I7I7', now, now) or v
        end,

        count = function(v)
          local newest = max(now, (read('>I7', v, 15)))
          return sub(v, 1, 7) .. pack('>I7I7', newest, newest)
        end,

        lasts = function(v)
          local period, last, newest = read('>I7I7I7', v, 1)
          return last > 0 and last + period or newest, period, period
        end,
      }
    end

    -- A key that is charged under several numbers of a policy has a state under each of them;
    -- step.Kept says why. The value then begins with the byte 255, which no number does; then
    -- for each of them, the one used last first: the instant until which it is kept, its length,
    -- and its own value.
    local SEVERAL, MAXKEPT = 255, 8

    -- keep returns v with the instant until which it is kept, but for those beside it.
    local function keep(functions, v)
      local fresh, window, shows = functions.lasts(v)
      return {value = v, till = min(max(fresh, now + 2 * window), 9007199254740991), fresh = fresh, window = window, shows = shows}
    end

    -- take is called with a whole value that is not one under the policy's numbers alone, or is
    -- ahead of now. It returns the policy's own, or false if it is fresh; and those of others, as
    -- from keep. If it is not a value at all, it raises an error.
    function take(algorithm, v, place)
      local functions, all = rare[algorithm], {}
      if byte(v, 1) == SEVERAL then
        local i = 2
        while i <= #v do
          if #all == MAXKEPT or #v < i + 13 then error(ANOTHER, 0) end
          local till, length = read('>I7I7', v, i)
          local x = sub(v, i + 14, i + 13 + length)
          if #x < length or not functions.intact(x) then error(ANOTHER, 0) end
          local _, _, shows = functions.lasts(x)
          all[#all + 1] = {value = x, till = till, shows = shows}
          i = i + 14 + length
        end
      else
        if not functions.intact(v) then error(ANOTHER, 0) end
        local x = keep(functions, v)
        if x.fresh > now then all[1] = x end
      end

      local alike, own, others = sub(numbers, place, place + functions.alike - 1), false, {}
      for _, x in ipairs(all) do
        if x.till > now then
          if sub(x.value, 1, #alike) == alike then own = x.value else others[#others + 1] = x end
        end
      end
      if own and functions.enlarge then own = functions.enlarge(own, place) end
      if not own then
        if #others == 0 then return own, others end
        local most = others[1]
        for _, x in ipairs(others) do
          if x.shows > most.shows then most = x end
        end
        others[MAXKEPT] = nil
        own = functions.adopt(most.value, place)
      end

      -- As step.Redate.
      local _, longest = functions.lasts(own)
      for _, x in ipairs(others) do
        local _, window = functions.lasts(x.value)
        longest = max(longest, window)
      end
      for _, x in ipairs(others) do x.till = min(x.till, now + 2 * longest) end
      return functions.redate(own, place, longest), others
    end

    -- join returns the whole value, after n units were charged to own, and its life. What is alone
    -- lives longer by a quarter: the steps count on that.
    function join(algorithm, own, others, n)
      local functions = rare[algorithm]
      local first = keep(functions, own)
      if #others == 0 then return own, first.fresh - now + div(first.window, 4) + 2 end
      local till = first.till
      for _, x in ipairs(others) do till = max(till, x.till) end
      local out = {char(SEVERAL), pack('>I7I7', till, #own), own}
      for _, x in ipairs(others) do
        local v = x.value
        if n > 0 then v = functions.count(v, n, first.fresh) end
        out[#out + 1] = pack('>I7I7', x.till, #v) .. v
      end
      return concat(out), till - now
    end

    -- settle gives back, or charges what fits, of each part by itself.
    function settle(parts, size, first, last)
      for i = 0, parts - 1 do
        local from = first + size * i
        local algorithm, _, inparts, cell, high, low = byte(questions, from, from + 5)
        local place, key, functions = 256 * high + low, keys[cell], rare[algorithm]
        local n, at, actual = read('>I7I7I7', questions, from + 6)
        local v = values[cell]
        if v == nil then
          v = inparts == 1 and call('GETRANGE', key, 0, BEGINNING - 1) or call('GET', key)
          if v == '' then v = false end
        elseif v and #v == BEGINNING then
          inparts = 1
        end
        local own, others = v
        if v and admits(algorithm, v, 1, key, place) == nil then
          if inparts == 1 then v = call('GET', key) end
          own, others = take(algorithm, v, place)
        end
        local uncovered, new, life = 0
        if not functions.most and actual > 0 then
          -- it counts calls, and the call took place
        elseif actual < n then
          if own then
            new, life = functions.giveback(own, at, n - actual, not others and key, place)
            if others then new, life = join(algorithm, new, others, 0) end
          end
        elseif actual > n then
          local fit = most(algorithm, own, key, place, 0, min(actual - n, functions.most(place)))
          uncovered = actual - n - fit
          if fit > 0 then
            new, life = charge(algorithm, own, fit, key, place, others or inparts == 0, admits(algorithm, own, fit, key, place, true))
            if others then new, life = join(algorithm, new, others, fit) end
          end
        end
        local failed = life and save(algorithm, cell, key, v, new, life, inparts)
        if failed then error(failed, 0) end
        out[last + i + 1] = '\3' .. pack('>I7', uncovered)
      end
    end
  end

  while pos < #questions and not missing do
    -- All parts of a question decide before one is written.
    local mode, parts, size, algorithm, denied, inparts, cell, high, low = byte(questions, pos, pos + 8)
    local first, after, extra = pos + 3, pos + 3 + size * parts, nil
    if mode >= EXTRA then
      mode, extra, after = mode - EXTRA, read('>I7', questions, after), after + 7
      missing = not most
    end
    local allowed, failed, before = mode ~= DENY, nil, nil
    local grown, kept = 0, 0 -- the words that are laid out if it is allowed, and if not
    local place, key, n, v, own, others, ok, a, b, c, d, e, f, g, h -- of a part
    if mode == SETTLE then
      if settle then
        local done, err = pcall(settle, parts, size, first, last)
        if not done then failed = err end
      else
        missing = true
      end
    end
    local asked = (mode == SETTLE or missing) and 0 or parts
    local charged = 0 -- units beyond n: in the second round, the extra ones that all parts admit
    for round = 1, extra and 2 or 1 do
      for i = 0, asked - 1 do
        if i > 0 then before = {before, algorithm, denied, inparts, cell, place, key, n, v, own, others, ok, a, b, c, d, e, f, g, h} end
        if i > 0 or round > 1 then
          algorithm, denied, inparts, cell, high, low = byte(questions, first + size * i, first + size * i + 5)
        end
        place, key, n = 256 * high + low, keys[cell], 1 + charged
        if size > 6 then n = read('>I7', questions, first + size * i + 6) + charged end
        v = values[cell]
        if v == nil then
          if inparts == 1 then v = try('GETRANGE', key, 0, BEGINNING - 1) else v = try('GET', key) end
          if v == '' and inparts == 1 then v = false end
          if type(v) == 'table' then failed = v break end
          values[cell] = v
        elseif inpart and v and #v == BEGINNING then
          inparts = 1 -- as another plan may have read no more
        end
        if parts > 1 then
          local is = not v and try('GET', key) -- not a value: of another type, or empty
          if is then failed = type(is) == 'table' and is or ANOTHER break end
          out[last + 2 * i + 1], out[last + 2 * i + 2] = '', '' -- the list grows at its end
        end
        own, others, ok = v, nil, nil
        if algorithm == 1 then -- tb2
          -- t, f are the use, and then what it would be with the charge. c is the burst that the value is
          -- kept for, d the T under the same numbers, if there is one, and e more than a quarter of the
          -- time in which it fills.
          if place ~= bucketPlace then
            local divisor
            bucketPlace, bucketLimit, bucketPeriod, bucketBurst, divisor = place, read('>I7I7I7I7', numbers, place)
            per, q = bucketLimit / divisor, bucketPeriod / divisor
            r = q % per
            q = (q - r) / per
            full = bucketBurst * r
            fullf = full % per
            full = bucketBurst * q + (full - fullf) / per
            quarter = (full - full % 4) / 4 + 1
          end
          local limit, period, burst, t, f = bucketLimit, bucketPeriod, bucketBurst, now, 0
          d, e = nil, quarter
          if own then
            limit = nil
            if #own == 35 then limit, period, burst, t, f = read('>I7I7I7I7I7', own, 1) end
            if burst == bucketBurst then
              d = t
            elseif burst < bucketBurst then
              burst = bucketBurst
            else
              e = min(div(q * burst + burst, 4) + 2, 2251799813685248) -- 2^51: a value may be garbage
            end
          end
          t = t - now
          if limit == bucketLimit and period == bucketPeriod and (others or t <= 2 * full) then
            if t < 0 then t, f = 0, 0 end
            local part = n * r
            f = f + part % per
            t = t + n * q + (part - part % per) / per
            if f >= per then t, f = t + 1, f - per end
            ok, a, b, c = t < full or t == full and f <= fullf, t, f, burst
          end
        elseif algorithm == 2 then -- fw2
          if place ~= fixedPlace then
            fixedPlace, fixedOf, fixedLimit = place, read('>I7I7', numbers, place)
            fixedPeriod = fixedOf > FROMFIRST and fixedOf - FROMFIRST or fixedOf
          end
          local of, start, count = fixedOf, 0, 0
          if own then
            if #own == 21 then of, start, count = read('>I7I7I7', own, 1) else of = nil end
          end
          if of == fixedOf and (others or start - now <= fixedPeriod) then
            if start <= now and (count == 0 or start + fixedPeriod <= now) then
              start, count = of == fixedPeriod and now - now % of or now, 0
            end
            ok, a, b, c, d, e = n <= fixedLimit - count, start, count, fixedPeriod, fixedLimit, of
          end
        elseif algorithm == 3 then -- sw2
          -- a is the start of the present sub-window, b its count, and c how many have passed since the
          -- newest of the value; d is for how long a count counts.
          if place ~= windowPlace then
            windowPlace, windowPeriod, k, windowLimit, span, neverover = place, read('>I7I7I7I7I7', numbers, place)
            if k ~= formatted then formatted, format = k, '>' .. rep('I7', k + 4) end
          end
          local start, counts = now - now % span
          local room, old, first, passed = windowLimit - n, 0, 0, k + 1
          if own then
            if #own == 28 + 7 * k then counts = {read(format, own, 1)} end -- from the fourth on
            if counts and counts[1] == windowPeriod and counts[2] == k and (others or counts[3] - now <= (k + 1) * span) then
              passed = 0
              if counts[3] >= start then
                start, first = counts[3], counts[4]
              else
                passed = min(div(start - counts[3], span), k + 1)
              end
              for i = 4, k + 3 - passed do room = room - counts[i] end
              if passed <= k then old = counts[k + 4 - passed] end
            else
              start = nil
            end
          end
          if start then
            ok = old <= room
            if not ok and room >= 0 and neverover == 0 then
              ok = atmost(old, span - max(now - start, 0), room, span)
            end
            a, b, c, d = start, first, passed, (k + 1) * span
          end
        elseif algorithm == 4 then -- sl2
          -- first and on are the ring without what has expired.
          if place ~= logPlace then
            logPlace, logPeriod, logLimit = place, read('>I7I7', numbers, place)
          end
          local period, limit = logPeriod, logLimit
          local of, most, first, count, newest, size, oldest = period, limit, 0, 0, 0, limit < 4 and limit or 4, 0
          if own then
            of = nil
            if #own > HEAD then of, most, first, count, newest, size = read('>I7I7I7I7I7I7', own, 1) end
            local whole = HEAD + 7 * size
            if first >= size or count > size or size > MAXLOG or most > MAXLOG or #own ~= whole and (#own ~= BEGINNING or #own > whole) then of = nil end
          end
          if of == period and (others or newest - now <= of) then
            if most < limit then most = limit end
            if count > 0 then
              local cut = (now > newest and now or newest) - period
              oldest = at(own, key, first, size, 0)
              if oldest <= cut then
                local dead = expired(own, key, first, count, size, cut)
                first, count = (first + dead) % size, count - dead
                if count > 0 then oldest = at(own, key, first, size, 0) end
              end
            end
            ok, a, b, c, d, e, f, g, h = n <= limit - count, most, first, count, newest, size, oldest, period, limit
          end
        elseif algorithm == 5 then -- mi2
          local period = read('>I7', numbers, place)
          local of, last, newest = period, 0, 0
          if own then
            if #own == 21 then of, last, newest = read('>I7I7I7', own, 1) else of = nil end
          end
          if of == period and (others or newest - now <= of) then
            ok, a, b = last == 0 or last + period <= now, newest, period
          end
        end
        if ok == nil then
          if not take then missing = true break end
          if inparts == 1 then v = call('GET', key) end
          local done
          done, own, others = pcall(take, algorithm, v, place)
          if not done then failed = own break end
          ok, a, b, c, d, e, f, g, h = admits(algorithm, own, n, key, place, others)
          if ok == nil then failed = ANOTHER break end
          local more = div(max(#v, own and #own or 0), 7)
          grown, kept = grown + more, kept + more
        elseif inparts == 1 then
          local more = 0
          if mode ~= PEEK then
            if algorithm == 4 then -- sl2
              -- The size of the ring that n more units need, if they need another.
              if own and e < h and c + n > e then more = max(c + n, min(2 * e, max(a, h))) end
            end
          end
          grown = grown + more
          if denied == 1 then
            if mode == PEEK then -- it is laid out for nothing
              if algorithm == 4 then -- sl2
                if own then more = read('>I7', own, 36) end
              end
            end
            kept = kept + more
          end
        end
        allowed = allowed and ok
        if extra and ok and round == 1 then extra = most(algorithm, own, key, place, n, n + extra) - n end
      end
      if missing or failed or not allowed then
        extra = nil
        break
      elseif extra and round == 1 then
        charged, before, grown, kept = extra, nil, 0, 0
      end
    end

    if grown + kept > 0 and not failed and not missing then
      local more = allowed and grown or kept
      if words + more > MAXWORDS and #questions > #used + after - pos then
        failed = {words = more}
      else
        words = words + more
      end
    end

    if not failed and not missing then
      for i = asked - 1, 0, -1 do
        local new, life, state, patch
        if allowed and mode == PEEK then
          n = 0
        elseif allowed then
          if algorithm == 1 then -- tb2
            local till = now + a
            state = pack('>I7I7', till, b)
            if d and d - d % e == till - till % e then
              life, patch = 0, state
            else
              -- The life goes beyond the end of the quarter that T is in, by the clock, so that one write in
              -- each quarter has to look at the life that the value has.
              life = a + e + 1
            end
            if others or not patch then new = sub(numbers, place, place + 13) .. pack('>I7', c) .. state end
          elseif algorithm == 2 then -- fw2
            state = pack('>I7I7', a, b + n)
            if b > 0 then life, patch = 0, state else life = a + c - now end
            if others or not patch then new = pack('>I7', e) .. state end
          elseif algorithm == 3 then -- sw2
            if b > 0 then life, patch = 0, pack('>I7I7', a, b + n) end
            if others or not patch then new, life = pushed(own, place, a, b + n, c), life or a + d - now end
            state = own
          elseif algorithm == 4 then -- sl2
            local latest = now > d and now or d
            state = pack('>I7I7I7I7', c + n, 0, c == 0 and latest or f, latest)
            new, life = push(own, not others and key, g, a, b, c, e, n, latest), loglife(own, d, latest, g)
          elseif algorithm == 5 then -- mi2
            local newest = max(now, a)
            state = pack('>I7I7', newest, newest)
            new, life = sub(numbers, place, place + 6) .. state, newest + b - now
          end
        elseif denied == 1 then
          if mode == PEEK and inparts == 1 and own and not others then own = call('GET', key) end -- what is whole is not written
          if algorithm == 2 then -- fw2
            state = pack('>I7I7', a, max(b, min(b + min(n, d), d)))
            new, life = pack('>I7', e) .. state, a + c - now
          elseif algorithm == 3 then -- sw2
            local most = read('>I7', numbers, place + 35)
            new = pushed(own, place, a, max(b, min(b + min(n, most), most)), c)
            state, life = own, a + d - now
          elseif algorithm == 4 then -- sl2
            local first, count, size, limit = b, c, e, h
            local units = min(n, limit)
            local latest, gone = max(now, d), max(count + units - max(limit, count), 0)
            first, count = (first + gone) % size, count - gone
            -- What is waited for: entries that stay, or those of now.
            local one, wait = max(count + units - limit, 0), max(count + 2 * units - limit, 0)
            one = one < count and at(own, key, first, size, one) or latest
            wait = wait > 0 and (wait <= count and at(own, key, first, size, wait - 1) or latest) or 0
            state = pack('>I7I7I7I7', count + units, wait, one, latest)
            new = push(own, not others and mode ~= PEEK and key, g, a, first, count, size, units, latest)
            life = loglife(own, d, latest, g)
          end
          if mode == PEEK then new, life = nil, nil end -- only the state is as Allow would answer it
        end
        if others and mode ~= PEEK and (life or own) then new, life = join(algorithm, new or own, others, allowed and n or 0) end
        if life then
          -- A new value, unless it was written, is kept for half as much again as it counts, so that few
          -- writes have to renew that. A life is never shortened, as a limiter of the same name with
          -- other numbers may need the longer one; a life of 0 means the present one. In tests with an
          -- instant of their own nothing expires.
          -- An error, such as READONLY or OOM, is that of the whole call.
          local done
          if v and life == 0 then
            if patch then
              done = try('SETRANGE', key, PATCHED[algorithm], patch)
            elseif new then
              done = try('SET', key, new, 'KEEPTTL')
            end
          else
            local least = life > 0 and (life + 1999 - (life + 999) % 1000) / 1000 or 1
            if given then least = 3600000 end
            local most = least + (least - least % 2) / 2
            if not v then -- not over a value of another type, which MGET returns as none
              done = try('SET', key, new, 'PX', most, 'NX')
              if not done then failed = ANOTHER end
            elseif call('PTTL', key) >= least then
              if new then done = try('SET', key, new, 'KEEPTTL') end
            elseif new then
              done = try('SET', key, new, 'PX', most)
            else
              call('PEXPIRE', key, most)
            end
          end
          if type(done) == 'table' and done.err then return done end
          if failed or inparts == 1 then values[cell] = nil else values[cell] = new end
        end
        if not state then
          if algorithm == 1 then -- tb2
            if own then state = sub(own, 22) end
          elseif algorithm == 2 then -- fw2
            if own then state = sub(own, 8) end
          elseif algorithm == 3 then -- sw2
            state = own
          elseif algorithm == 4 then -- sl2
            -- The number of entries, and the instants that must expire before n units fit, before one
            -- more does, and before nothing is used.
            local first, count, size, limit = b, c, e, h
            local wait, one, all, over = 0, 0, 0, count + n - limit
            if count > 0 then
              if over > 0 and over <= count then wait = at(own, key, first, size, over - 1) end
              one, all = f, d
              if count > limit then one = at(own, key, first, size, count - limit) end
            end
            state = pack('>I7I7I7I7', count, wait, one, all)
          elseif algorithm == 5 then -- mi2
            if own then state = sub(own, 8) end
          end
        end
        local piece = last + 2 * i + 1
        if state then
          out[piece], out[piece + 1] = ok and (allowed and '\7' or '\5') or '\4', state
        else
          out[piece], out[piece + 1] = ok and (allowed and '\3' or '\1') or '\0', ''
        end
        if i > 0 then
          before, algorithm, denied, inparts, cell, place, key, n, v, own, others, ok, a, b, c, d, e, f, g, h = unpack(before, 1, 20)
        end
      end
    end

    if not missing then
      local pieces = parts + asked
      if extra then out[last + 1] = out[last + 1] .. pack('>I7', extra) end
      if failed then
        for i = #out, last + 1, -1 do out[i] = nil end
        pieces = 1
        if type(failed) == 'table' and failed.words then
          out[last + 1] = '\16' .. pack('>I7', failed.words)
        else
          local err = type(failed) == 'table' and failed.err or tostring(failed)
          local text, code = string.match(err, '((%u%u%u+) .*)') -- an error of the server
          if code and code ~= 'WRONGTYPE' and code ~= 'ERR' then return {err = text} end -- such as READONLY or OOM: all questions fail
          err = sub(err, 1, 200)
          out[last + 1] = '\8' .. char(0, #err) .. err
        end
      end
      pos, last = after, last + pieces
    end
  end
until not missing
return concat(out)
