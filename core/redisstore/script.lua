-- Put together by TestScriptIsAssembled from core/redisstore/lua and core/step: edit those.
--
-- Answers questions in order, each all or nothing.
--
-- KEYS: the values of all questions. ARGV[1]: the instant, for tests, or '' for the server's.
-- ARGV[2]: a byte for each algorithm: 1 if a question uses it, 2 if it reads a value in parts,
-- or 0; then the questions. ARGV[3]: the numbers of the policies, one after the other.
--
-- The questions are byte strings:
--
--   mode, number of parts, bytes of a part, 1 if they are about several keys or 0, then the parts:
--   algorithm, 1 if it counts what is refused or 0, the form of its value, which key it is about,
--   from 1, and in two bytes where in numbers its policy is, from 1; then, unless n is 1: n; and to
--   settle, also: at, actual. In mode + EXTRA the parts are followed by how many units more to
--   charge, as far as all policies admit them
--
-- The form is MORE or LAST if the value of the key has records, one for each policy: of a limiter,
-- all but the logs. The parts about it follow each other, and LAST is the last of them. A log is a
-- value of its own: WHOLE, or IN_PARTS if it may be long, and is read in parts. A record is a word,
-- its tag, and the policy's value. A tag says which policy it is, the algorithm, and the length:
-- ((policy * 8) + algorithm) * 2^24 + length.
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
-- numbers from byte place on, as words, in the order of Step.Constants; before them is the tag that
-- its record has under these numbers. own has the record from byte o on; or it is the value of a
-- log, or no more than its beginning if that is read in parts; or false. A value begins with the
-- numbers that it is kept under. key is its name. A twin writes nothing.
--
--   helpers: what the others need, before all questions
--   admits: sets ok to whether n units fit, a to h for the parts below, which are nil before, and z to
--     the last byte of a record. Or it leaves ok nil, if own is not of these numbers: if they, or the tag, or the
--     length of a log, are others. If it is, then whatever the rest of it holds, this and the
--     others raise no error and take no longer than with any other. Unless others is set, it leaves
--     ok nil also if own is ahead of now by more than Step.Window: then take brings it back.
--   charge, refuse: set new to the new value; life, for which it counts, in microseconds, or 0 if
--     that has not grown; and state, which is replied, as step.ReadTwin expects it. Instead of new
--     they may set patch, unless others is set: no more of the record changes than these bytes from
--     PATCHED[algorithm] on. Or a log sets patches: after how many bytes, which, and so on. refuse
--     is for policies that count what is refused.
--   state: sets state, if there is one, where nothing was charged
--   grows: if read in parts, sets more to the words that a charge lays out anew, if any
--   rare: adds the functions that are rarely needed to the table rare

-- Numbers are stored as words of 7 bytes, big endian: every integer up to 2^53-1. Some of a log
-- have 2.
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
      local x = 0
      for _ = 1, tonumber(sub(format, 2 * k + 1, 2 * k + 1)) do
        x, i = x * 256 + byte(v, i), i + 1
      end
      out[k] = x
    end
    return unpack(out)
  end
  function pack(format, ...)
    local out = {}
    for k = 1, (#format - 1) / 2 do
      local x, digits = select(k, ...), {}
      for i = tonumber(sub(format, 2 * k + 1, 2 * k + 1)), 1, -1 do
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

local BEGINNING = 477 -- bytes that are read of a long log: its header and 64 entries

local ANOTHER = 'the key holds a value of another kind'

-- The bytes before those that most charges change: the tag and the numbers. To make a string of a
-- number takes a server long, so those are known that are needed most, by that number and one.
local PATCHED = {28, 14, 21, 0}
local OFFSETS = {[29] = '28', [15] = '14', [22] = '21', [1] = '0'}

local LENGTHS = 16777216 -- 2^24: what a tag counts the policies by

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
local bucketPlace, bucketTag, bucketLimit, bucketPeriod, bucketBurst, q, full, per, r, fullf, quarter

-- The numbers that were read last, and their place. Questions mostly follow others like them.
local fixedPlace, fixedTag, fixedOf, fixedPeriod, fixedLimit
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
  function pushed(v, o, place, start, count, passed)
    local k = read('>I7', numbers, place + 7)
    local counts = rep('\0', 7 * (passed - 1)) .. sub(v or '', o + (passed > 0 and 28 or 35), o + 34 + 7 * k - 7 * passed)
    return sub(numbers, place, place + 13) .. pack('>I7I7', start, count) .. counts
  end
end

-- The numbers that were read last, and their place. Questions mostly follow others like them.
local windowPlace, windowTag, windowPeriod, k, windowLimit, span, neverover, formatted, format

local HEAD, HEADER = 29, '>I7I7I7I2I2I2I2' -- before the ring
local at, expired, push
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

  -- push appends n entries to the value of a key. It returns the value, or nothing and the patch, or
  -- the patches. It returns the value if there is no key: then all of v is known.
  function push(v, key, of, most, first, count, size, n, newest)
    local whole, oldest = not key, count == 0 and newest or at(v, key, first, size, 0)
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
    local place, one = (first + count) % size, pack('>I7', newest)
    local head = pack(HEADER, of, newest, oldest, most, first, count + n, size)
    local straight = min(n, size - place) -- the rest wraps around
    local wrapped, entries = n - straight, rep(one, straight)
    if whole then
      return head .. rep(one, wrapped) .. sub(v, HEAD + 1 + 7 * wrapped, HEAD + 7 * place)
        .. entries .. sub(v, HEAD + 1 + 7 * (place + straight))
    elseif n == 0 then
      return nil, head
    elseif wrapped == 0 and HEAD + 7 * place < BEGINNING then
      return nil, head .. sub(v, HEAD + 1, HEAD + 7 * place) .. entries
    end
    return nil, nil, {0, head, HEAD + 7 * place, entries, HEAD, rep(one, wrapped)}
  end
end

-- The numbers that were read last, and their place. Questions mostly follow others like them.
local logPlace, logPeriod, logLimit, logQuarter

local out, last = {pack('>I7', now)}, 1 -- the reply in pieces, and their number
local words = 0                         -- that were laid out anew

-- values has what is known to be stored, by the number of the key.
local keys, values = KEYS, {}
local inpart = find(used, '\2', 1, true) -- a value may be the beginning of a long log
if #keys > 1 and not inpart then values = call('MGET', unpack(keys)) end

local PEEK, SETTLE, DENY, EXTRA = 1, 2, 3, 4
local MORE, LAST, WHOLE, IN_PARTS = 0, 1, 2, 3
local pos = #used + 1 -- where the next question is
local missing         -- whether it needs functions that are not defined yet; then it begins again
local admits, most, take, join, tagged, sorted, settle

-- Assignments are one for each variable, as several at once take as many instructions more.
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

    -- tagged returns the record of a value of the policy.
    function tagged(v, place)
      local tag = read('>I7', numbers, place - 7)
      return pack('>I7', tag - tag % LENGTHS + #v) .. v
    end

    -- isperiod reports whether v begins with a period that a policy may have.
    local function isperiod(v)
      local period = read('>I7', v, 1)
      return period >= 1 and period <= 4503599627370496
    end

    -- own is the policy's record or log. others is what take has returned, or something else unless the
    -- value may be ahead of now.
    function admits(algorithm, own, n, key, place, others)
      local o, z, ok, a, b, c, d, e, f, g, h = 1
      if algorithm == 1 then -- tb2
        -- t, f are the use, and then what it would be with the charge. c is the burst that the value is
        -- kept for, d the T under the same numbers, if there is one, and e more than a quarter of the
        -- time in which it fills.
        if place ~= bucketPlace then
          local divisor
          bucketPlace, bucketTag, bucketLimit, bucketPeriod, bucketBurst, divisor = place, read('>I7I7I7I7I7', numbers, place - 7)
          per, q = bucketLimit / divisor, bucketPeriod / divisor
          r = q % per
          q = (q - r) / per
          full = bucketBurst * r
          fullf = full % per
          full = bucketBurst * q + (full - fullf) / per
          quarter = (full - full % 4) / 4 + 1
        end
        local tag, limit, period, burst, t, f
        z = o + 41
        c = bucketBurst
        e = quarter
        if not own then
          t = 0
          f = 0
        elseif #own >= z then
          tag, limit, period, burst, t, f = read('>I7I7I7I7I7I7', own, o)
          if tag ~= bucketTag or limit ~= bucketLimit or period ~= bucketPeriod then
            t = nil
          else
            if burst == c then
              d = t
            elseif burst > c and (others or t > now or t == now and f > 0) then -- or what it is kept for is over
              c = burst
              e = min(div(q * burst + burst, 4) + 2, 2251799813685248) -- 2^51: a value may be garbage
            end
            t = t - now
            if t > 2 * full and not others then t = nil end
          end
        end
        if t then
          if t < 0 then
            t = 0
            f = 0
          end
          local part = n * r
          f = f + part % per
          t = t + n * q + (part - part % per) / per
          if f >= per then
            t = t + 1
            f = f - per
          end
          ok = t < full or t == full and f <= fullf
          a = t
          b = f
        end
      elseif algorithm == 2 then -- fw2
        if place ~= fixedPlace then
          fixedPlace, fixedTag, fixedOf, fixedLimit = place, read('>I7I7I7', numbers, place - 7)
          fixedPeriod = fixedOf > FROMFIRST and fixedOf - FROMFIRST or fixedOf
        end
        local tag, of
        z = o + 27
        if not own then
          a = 0
          b = 0
        elseif #own >= z then
          tag, of, a, b = read('>I7I7I7I7', own, o)
          if tag ~= fixedTag or of ~= fixedOf or a - now > fixedPeriod and not others then a = nil end
        end
        if a then
          if a <= now and (b == 0 or a + fixedPeriod <= now) then
            a = fixedOf == fixedPeriod and now - now % fixedPeriod or now
            b = 0
          end
          ok = n <= fixedLimit - b
          c = fixedPeriod
          d = fixedLimit
        end
      elseif algorithm == 3 then -- sw2
        -- a is the start of the present sub-window, b its count, and c how many have passed since the
        -- newest of the value; d is for how long a count counts.
        if place ~= windowPlace then
          windowPlace, windowTag, windowPeriod, k, windowLimit, span, neverover = place, read('>I7I7I7I7I7I7', numbers, place - 7)
          if k ~= formatted then formatted, format = k, '>' .. rep('I7', k + 5) end
        end
        local start, counts = now - now % span
        local room, old, first, passed = windowLimit - n, 0, 0, k + 1
        z = o + 34 + 7 * k
        if own then
          if #own >= z then counts = {read(format, own, o)} end -- from the fifth on
          if counts and counts[1] == windowTag and counts[2] == windowPeriod and counts[3] == k and (others or counts[4] - now <= (k + 1) * span) then
            passed = 0
            if counts[4] >= start then
              start, first = counts[4], counts[5]
            else
              passed = min(div(start - counts[4], span), k + 1)
            end
            for i = 5, k + 4 - passed do room = room - counts[i] end
            if passed <= k then old = counts[k + 5 - passed] end
          else
            start = nil
          end
        end
        if start then
          ok = old <= room
          if not ok and room >= 0 and neverover == 0 then
            ok = atmost(old, span - max(now - start, 0), room, span)
          end
          a = start
          b = first
          c = passed
          d = (k + 1) * span
        end
      elseif algorithm == 4 then -- sl3
        -- a to f are what the header has after newest, without the entries that have expired: most, first,
        -- count, newest, size, oldest.
        if place ~= logPlace then
          logPlace, logPeriod, logLimit = place, read('>I7I7', numbers, place)
          logQuarter = logPeriod < 8 and 1 or (logPeriod - logPeriod % 4) / 4
        end
        if not own then
          a = 0
          b = 0
          c = 0
          d = 0
          e = logLimit < 4 and logLimit or 4
          f = 0
        elseif #own > HEAD then
          local of
          of, d, f, a, b, c, e = read(HEADER, own, 1)
          local length = HEAD + 7 * e
          if of ~= logPeriod or b >= e or c > e or a > MAXLOG or #own ~= length and (#own ~= BEGINNING or #own > length or e > MAXLOG)
            or d - now > of and not others then
            d = nil
          end
        end
        if d then
          if a < logLimit then a = logLimit end
          if c > 0 then
            local cut = (now > d and now or d) - logPeriod
            if f <= cut then
              local dead = expired(own, key, b, c, e, cut)
              b = (b + dead) % e
              c = c - dead
              if c > 0 then f = at(own, key, b, e, 0) end
            end
          end
          if a > logLimit and c == 0 and not others and (d <= now or at(own, key, b, e, -1) + logPeriod <= now) then a = logLimit end -- what it is kept for is over
          ok = n <= logLimit - c
        end
      elseif algorithm == 5 then -- mi2
        local expected, period = read('>I7I7', numbers, place - 7)
        local tag, of, before, newest
        z = o + 27
        if not own then
          before = 0
          newest = 0
        elseif #own >= z then
          tag, of, before, newest = read('>I7I7I7I7', own, o)
          if tag ~= expected or of ~= period or newest - now > period and not others then newest = nil end
        end
        if newest then
          ok = before == 0 or before + period <= now
          a = newest
          b = period
        end
      end
      return ok, a, b, c, d, e, f, g, h
    end

    local function charge(algorithm, own, n, key, place, others, _, a, b, c, d, e, f, g, h)
      local o, new, life, state, patch, patches = 1
      if algorithm == 1 then -- tb2
        local till = now + a
        state = pack('>I7I7', till, b)
        if d and d - d % e == till - till % e then
          life = 0
          patch = state
        else
          -- The life goes beyond the end of the quarter that T is in, by the clock, so that one write in
          -- each quarter has to look at the life that the value has.
          life = a + e + 1
        end
        if others or not patch then new = sub(numbers, place, place + 13) .. pack('>I7', c) .. state end
      elseif algorithm == 2 then -- fw2
        state = pack('>I7I7', a, b + n)
        if b > 0 then
          life = 0
          patch = state
        else
          life = a + c - now
        end
        if others or not patch then new = sub(numbers, place, place + 6) .. state end
      elseif algorithm == 3 then -- sw2
        if b > 0 then
          life = 0
          patch = pack('>I7I7', a, b + n)
        end
        if others or not patch then
          new = pushed(own, o, place, a, b + n, c)
          life = life or a + d - now
        end
        if own then state = #own == 35 + 7 * k and own or sub(own, o, o + 34 + 7 * k) end
      elseif algorithm == 4 then -- sl3
        local latest = now > d and now or d
        if own and d - d % logQuarter == latest - latest % logQuarter then
          life = 0
        else
          -- The life goes on from the end of the quarter of the period that the entry is in, by the clock,
          -- so that one write in each quarter has to look at the life that the value has.
          life = latest - latest % logQuarter + logQuarter + logPeriod - now
        end
        if c == 0 then f = latest end
        state = pack(HEADER, logPeriod, latest, f, a, b, c + n, e)
        local last = HEAD + 7 * ((b + c) % e)
        if n == 1 and own and c < e and last < BEGINNING and not others then -- as push does, which is for the rest
          patch = state .. sub(own, HEAD + 1, last) .. sub(state, 8, 14)
        else
          new, patch, patches = push(own, not others and key, logPeriod, a, b, c, e, n, latest)
        end
      elseif algorithm == 5 then -- mi2
        local newest = max(now, a)
        state = pack('>I7I7', newest, newest)
        new, life = sub(numbers, place, place + 6) .. state, newest + b - now
      end
      return new, life, patch and {0, patch} or patches
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
    local function save(number, key, v, changed, list, lives, from, upto)
      local failed, sized = nil, true
      -- The bytes of v from byte from to byte upto become changed; it may be of another length only if
      -- sized is set. Or, of a log, list has patches. lives is its life.
      --
      -- A new value is kept for half as much again as it counts, so that few writes have to renew
      -- that. A life is never shortened, as others of the records, or a limiter of the same name with
      -- other numbers, may need the longer one; a life of 0 means the present one. In tests with an
      -- instant of their own nothing expires.
      -- An error, such as READONLY or OOM, is that of the whole call.
      local new, done
      if v and lives == 0 and not sized then
        done = try('SETRANGE', key, OFFSETS[from] or from - 1, changed)
      else
        local least = lives > 0 and (lives + 1999 - (lives + 999) % 1000) / 1000 or 1
        if given then least = 3600000 end
        local most = least + (least - least % 2) / 2
        local renew = v and lives > 0 and call('PTTL', key) < least
        if list then
          for j = 1, #list, 2 do
            if list[j + 1] ~= '' then done = try('SETRANGE', key, list[j], list[j + 1]) end
          end
          if renew then call('PEXPIRE', key, most) end
        elseif not v then -- not over a value of another type, which MGET returns as none
          new = changed
          done = try('SET', key, new, 'PX', most, 'NX')
          if not done then failed, new = ANOTHER, nil end
        elseif sized or renew and #v ~= BEGINNING then -- of a long log, v may be no more than that
          new = sub(v, 1, from - 1) .. changed .. sub(v, upto + 1)
          if renew then
            done = try('SET', key, new, 'PX', most)
          else
            done = try('SET', key, new, 'KEEPTTL')
          end
        else
          done = try('SETRANGE', key, OFFSETS[from] or from - 1, changed)
          if renew then call('PEXPIRE', key, most) end
        end
      end
      if type(done) == 'table' and done.err then return done end
      values[number] = new
      return failed
    end

    do
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
          local _, _, _, most, _, more = admits(1, tagged(own, place), 1, key, place, not key)
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

    do
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

    do
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
          local _, most, first, count, newest, size = admits(4, own, 1, key, place, not key)
          if max(now, newest) - at >= logPeriod or count == 0 then -- only most may change
            n, first, count = 0, read('>I2I2', own, 24)
          end
          n = min(n, count)
          local new, patch = push(own, key, logPeriod, most, (first + n) % size, count - n, size, 0, newest)
          return new, 0, patch and {0, patch}
        end,

        intact = function(v)
          if #v <= HEAD or not isperiod(v) then return false end
          local most, first, count, size = read('>I2I2I2I2', v, 22)
          return first < size and count <= size and most <= MAXLOG and #v == HEAD + 7 * size
        end,

        -- adopt copies the newest entries, as many as decide.
        adopt = function(v, place)
          local period, limit = read('>I7I7', numbers, place)
          local _, newest, _, _, first, count, size = read(HEADER, v, 1)
          local n = min(count, limit)
          first = (first + count - n) % size
          local straight = min(n, size - first) -- the rest wraps around
          local entries = sub(v, HEAD + 1 + 7 * first, HEAD + 7 * (first + straight)) .. sub(v, HEAD + 1, HEAD + 7 * (n - straight))
          size = max(n, min(limit, 4))
          entries = entries .. rep('\0', 7 * (size - n))
          return pack(HEADER, period, newest, (read('>I7', entries, 1)), limit, 0, n, size) .. entries
        end,

        enlarge = function(v, place)
          local most, limit = read('>I2', v, 22), read('>I7', numbers, place + 7)
          return sub(v, 1, 21) .. pack('>I2', max(most, limit)) .. sub(v, 24)
        end,

        redate = function(v, place)
          local period, newest, _, most, _, count = read(HEADER, v, 1)
          if newest - now <= period then return v end
          count = max(count, (read('>I7', numbers, place + 7)))
          return pack(HEADER, period, now, now, most, 0, count, count) .. rep(pack('>I7', now), count)
        end,

        -- count keeps the newest entries, of more than the largest limit.
        count = function(v, n)
          local period, newest, _, most, first, count, size = read(HEADER, v, 1)
          local latest = max(now, newest)
          if count > 0 and at(v, nil, first, size, 0) <= latest - period then
            local dead = expired(v, nil, first, count, size, latest - period)
            first, count = (first + dead) % size, count - dead
          end
          n = min(n, most)
          local gone = max(count + n - max(most, count), 0)
          return (push(v, nil, period, most, (first + gone) % size, count - gone, size, n, latest))
        end,

        lasts = function(v)
          local period, newest, _, _, first, count, size = read(HEADER, v, 1)
          return count > 0 and at(v, nil, first, size, count - 1) + period or newest, period, period
        end,
      }
    end

    do
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
    -- step.Variant says why. The value then begins with the byte 255, which no number does; then
    -- for each of them, the one used last first: the instant until which it is kept, its length,
    -- and its own value.
    local SEVERAL, MAXKEPT = 255, 8

    -- keep returns v with the instant until which it is kept, but for those beside it.
    local function keep(functions, v)
      local fresh, window, shows = functions.lasts(v)
      return {value = v, till = min(max(fresh, now + 2 * window), 9007199254740991), fresh = fresh, window = window, shows = shows}
    end

    -- several returns the values under each of the numbers.
    local function several(functions, v)
      local all, i = {}, 2
      while i <= #v do
        if #all == MAXKEPT or #v < i + 13 then error(ANOTHER, 0) end
        local till, length = read('>I7I7', v, i)
        local x = sub(v, i + 14, i + 13 + length)
        if #x < length or not functions.intact(x) then error(ANOTHER, 0) end
        local _, _, shows = functions.lasts(x)
        all[#all + 1] = {value = x, till = till, shows = shows}
        i = i + 14 + length
      end
      return all
    end

    -- take is called with a whole value that is not one under the policy's numbers alone, or is
    -- ahead of now. It returns the policy's own, or false if it is fresh; and those of others, as
    -- from keep. If it is not a value at all, it raises an error.
    function take(algorithm, v, place)
      local functions, all = rare[algorithm], {}
      if byte(v, 1) == SEVERAL then
        all = several(functions, v)
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

    -- records calls f with the tag of each record of a value, without the length, and where it begins
    -- and ends.
    local function records(v, f)
      local i = 1
      repeat
        local tag = #v >= i + 6 and read('>I7', v, i) or error(ANOTHER, 0)
        local length = tag % LENGTHS
        if #v < i + 6 + length then error(ANOTHER, 0) end
        f(tag - length, i, i + 6 + length)
        i = i + 7 + length
      until i > #v
    end

    -- counts reports whether the value in a record is not fresh. Of an algorithm that is not known here,
    -- as another release may have it, it is taken for one that counts.
    local function counts(tag, x)
      local functions = rare[tag / LENGTHS % 8]
      if not functions then return true end
      if byte(x, 1) ~= SEVERAL then
        if not functions.intact(x) then error(ANOTHER, 0) end
        return functions.lasts(x) > now
      end
      for _, kept in ipairs(several(functions, x)) do
        if kept.till > now then return true end
      end
    end

    -- sorted returns the records of v in the order of the parts that begin at byte from of questions,
    -- with an empty one where there is none; then those of other policies that still count: a plan, or
    -- another release, may have others. In tests with an instant of their own all stay.
    function sorted(v, from, size)
      local found, rest = {}, {}
      records(v, function(tag, i, j)
        if found[tag] then error(ANOTHER, 0) end
        found[tag] = sub(v, i, j)
        rest[#rest + 1] = tag
      end)
      local out = {}
      repeat
        local _, _, form, _, high, low = byte(questions, from, from + 5)
        local tag = read('>I7', numbers, 256 * high + low - 7)
        tag = tag - tag % LENGTHS
        out[#out + 1] = found[tag] or pack('>I7', tag)
        found[tag] = nil
        from = from + size
      until form == LAST
      for _, tag in ipairs(rest) do
        local x = found[tag]
        if x and #x > 7 and (given or counts(tag, sub(x, 8))) then out[#out + 1] = x end
      end
      return concat(out)
    end

    -- settle gives back, or charges what fits, of each part by itself.
    function settle(parts, size, first, last)
      for i = 0, parts - 1 do
        local where = first + size * i
        local algorithm, _, form, number, high, low = byte(questions, where, where + 5)
        local place, key, functions = 256 * high + low, keys[number], rare[algorithm]
        local n, at, actual = read('>I7I7I7', questions, where + 6)
        local v = values[number]
        if v == nil then
          v = form == IN_PARTS and call('GETRANGE', key, 0, BEGINNING - 1) or call('GET', key)
          if v == '' and form == IN_PARTS then v = false end
        elseif v and form == WHOLE and #v == BEGINNING then
          form = IN_PARTS
        end
        local from, upto, own, others = 1, v and #v or 0, v
        if form < WHOLE and v then
          local mine = read('>I7', numbers, place - 7)
          own, from = false, upto + 1
          records(v, function(tag, i, j)
            if tag == mine - mine % LENGTHS then
              from, upto, own = i, j, j >= i + 7 and sub(v, i + 7, j)
            end
          end)
        end
        local function tag(x) return x and form < WHOLE and tagged(x, place) or x end
        if own and admits(algorithm, tag(own), 1, key, place) == nil then
          if form == IN_PARTS then
            v = call('GET', key)
            own, upto = v, #v
          end
          own, others = take(algorithm, own, place)
        end
        local uncovered, fit, new, life, patches = 0, 0
        if not functions.most and actual > 0 then
          -- it counts calls, and the call took place
        elseif actual < n then
          if own then new, life, patches = functions.giveback(own, at, n - actual, not others and key, place) end
        elseif actual > n then
          fit = most(algorithm, tag(own), key, place, 0, min(actual - n, functions.most(place)))
          uncovered = actual - n - fit
          if fit > 0 then
            new, life, patches = charge(algorithm, tag(own), fit, key, place, others or form < IN_PARTS, admits(algorithm, tag(own), fit, key, place, others))
          end
        end
        if life then
          if others then new, life = join(algorithm, new, others, fit) end
          local failed = save(number, key, v, tag(new), not new and patches, life, from, upto)
          if failed then error(failed, 0) end
        end
        out[last + i + 1] = '\3' .. pack('>I7', uncovered)
      end
    end
  end

  while pos < #questions and not missing do
    -- Each part decides, and works out what it changes. Nothing is written before all admit. If one
    -- does not, the question begins again, refused.
    local mode, parts, size, apart, algorithm, denied, form, number, high, low = byte(questions, pos, pos + 9)
    local first, asked, pieces, allowed = pos + 4, parts, 2 * parts, true
    local after = first + size * parts
    local failed, extra, trying, waiting, over -- trying is how many units more the parts so far admit
    local i, charged, grown = 0, 0, 0          -- the part; extra units; words that are laid out
    if mode > PEEK then
      if mode >= EXTRA then
        mode = mode - EXTRA
        trying = read('>I7', questions, after)
        after = after + 7
        missing = not most
      end
      if mode == SETTLE then
        asked = 0
        pieces = parts
        missing = not settle
        if settle then
          local done, err = pcall(settle, parts, size, first, last)
          if not done then failed = err end
        end
      elseif mode == DENY then
        allowed = false
        trying = nil
      end
      if missing then asked = 0 end
    end

    while i < asked do -- a value
      local key, v, start, begin, lives = keys[number], values[number], i, 1, 0
      local list, changed, from, upto, sized, ordered -- what changes, as save wants it; whether it is sorted
      if v == nil then
        if form == IN_PARTS then v = try('GETRANGE', key, 0, BEGINNING - 1) else v = try('GET', key) end
        if v == '' and form == IN_PARTS then v = false end
        if type(v) == 'table' then failed = v else values[number] = v end
      elseif inpart and form == WHOLE and v and #v == BEGINNING then
        form = IN_PARTS -- as another plan may have read no more
      end
      if apart == 1 and not v then
        local is = try('GET', key) -- not a value: of another type, or empty
        if is then failed = type(is) == 'table' and is or ANOTHER end
      end
      if failed then
        i = asked
        break
      end

      repeat -- a part that is about it
        local place, n, own, o = 256 * high + low, 1 + charged, v, begin
        local others, ok, z, a, b, c, d, e, f, g, h
        if size > 6 then n = read('>I7', questions, first + size * i + 6) + charged end
        if algorithm == 1 then -- tb2
          -- t, f are the use, and then what it would be with the charge. c is the burst that the value is
          -- kept for, d the T under the same numbers, if there is one, and e more than a quarter of the
          -- time in which it fills.
          if place ~= bucketPlace then
            local divisor
            bucketPlace, bucketTag, bucketLimit, bucketPeriod, bucketBurst, divisor = place, read('>I7I7I7I7I7', numbers, place - 7)
            per, q = bucketLimit / divisor, bucketPeriod / divisor
            r = q % per
            q = (q - r) / per
            full = bucketBurst * r
            fullf = full % per
            full = bucketBurst * q + (full - fullf) / per
            quarter = (full - full % 4) / 4 + 1
          end
          local tag, limit, period, burst, t, f
          z = o + 41
          c = bucketBurst
          e = quarter
          if not own then
            t = 0
            f = 0
          elseif #own >= z then
            tag, limit, period, burst, t, f = read('>I7I7I7I7I7I7', own, o)
            if tag ~= bucketTag or limit ~= bucketLimit or period ~= bucketPeriod then
              t = nil
            else
              if burst == c then
                d = t
              elseif burst > c and (others or t > now or t == now and f > 0) then -- or what it is kept for is over
                c = burst
                e = min(div(q * burst + burst, 4) + 2, 2251799813685248) -- 2^51: a value may be garbage
              end
              t = t - now
              if t > 2 * full and not others then t = nil end
            end
          end
          if t then
            if t < 0 then
              t = 0
              f = 0
            end
            local part = n * r
            f = f + part % per
            t = t + n * q + (part - part % per) / per
            if f >= per then
              t = t + 1
              f = f - per
            end
            ok = t < full or t == full and f <= fullf
            a = t
            b = f
          end
        elseif algorithm == 2 then -- fw2
          if place ~= fixedPlace then
            fixedPlace, fixedTag, fixedOf, fixedLimit = place, read('>I7I7I7', numbers, place - 7)
            fixedPeriod = fixedOf > FROMFIRST and fixedOf - FROMFIRST or fixedOf
          end
          local tag, of
          z = o + 27
          if not own then
            a = 0
            b = 0
          elseif #own >= z then
            tag, of, a, b = read('>I7I7I7I7', own, o)
            if tag ~= fixedTag or of ~= fixedOf or a - now > fixedPeriod and not others then a = nil end
          end
          if a then
            if a <= now and (b == 0 or a + fixedPeriod <= now) then
              a = fixedOf == fixedPeriod and now - now % fixedPeriod or now
              b = 0
            end
            ok = n <= fixedLimit - b
            c = fixedPeriod
            d = fixedLimit
          end
        elseif algorithm == 3 then -- sw2
          -- a is the start of the present sub-window, b its count, and c how many have passed since the
          -- newest of the value; d is for how long a count counts.
          if place ~= windowPlace then
            windowPlace, windowTag, windowPeriod, k, windowLimit, span, neverover = place, read('>I7I7I7I7I7I7', numbers, place - 7)
            if k ~= formatted then formatted, format = k, '>' .. rep('I7', k + 5) end
          end
          local start, counts = now - now % span
          local room, old, first, passed = windowLimit - n, 0, 0, k + 1
          z = o + 34 + 7 * k
          if own then
            if #own >= z then counts = {read(format, own, o)} end -- from the fifth on
            if counts and counts[1] == windowTag and counts[2] == windowPeriod and counts[3] == k and (others or counts[4] - now <= (k + 1) * span) then
              passed = 0
              if counts[4] >= start then
                start, first = counts[4], counts[5]
              else
                passed = min(div(start - counts[4], span), k + 1)
              end
              for i = 5, k + 4 - passed do room = room - counts[i] end
              if passed <= k then old = counts[k + 5 - passed] end
            else
              start = nil
            end
          end
          if start then
            ok = old <= room
            if not ok and room >= 0 and neverover == 0 then
              ok = atmost(old, span - max(now - start, 0), room, span)
            end
            a = start
            b = first
            c = passed
            d = (k + 1) * span
          end
        elseif algorithm == 4 then -- sl3
          -- a to f are what the header has after newest, without the entries that have expired: most, first,
          -- count, newest, size, oldest.
          if place ~= logPlace then
            logPlace, logPeriod, logLimit = place, read('>I7I7', numbers, place)
            logQuarter = logPeriod < 8 and 1 or (logPeriod - logPeriod % 4) / 4
          end
          if not own then
            a = 0
            b = 0
            c = 0
            d = 0
            e = logLimit < 4 and logLimit or 4
            f = 0
          elseif #own > HEAD then
            local of
            of, d, f, a, b, c, e = read(HEADER, own, 1)
            local length = HEAD + 7 * e
            if of ~= logPeriod or b >= e or c > e or a > MAXLOG or #own ~= length and (#own ~= BEGINNING or #own > length or e > MAXLOG)
              or d - now > of and not others then
              d = nil
            end
          end
          if d then
            if a < logLimit then a = logLimit end
            if c > 0 then
              local cut = (now > d and now or d) - logPeriod
              if f <= cut then
                local dead = expired(own, key, b, c, e, cut)
                b = (b + dead) % e
                c = c - dead
                if c > 0 then f = at(own, key, b, e, 0) end
              end
            end
            if a > logLimit and c == 0 and not others and (d <= now or at(own, key, b, e, -1) + logPeriod <= now) then a = logLimit end -- what it is kept for is over
            ok = n <= logLimit - c
          end
        elseif algorithm == 5 then -- mi2
          local expected, period = read('>I7I7', numbers, place - 7)
          local tag, of, before, newest
          z = o + 27
          if not own then
            before = 0
            newest = 0
          elseif #own >= z then
            tag, of, before, newest = read('>I7I7I7I7', own, o)
            if tag ~= expected or of ~= period or newest - now > period and not others then newest = nil end
          end
          if newest then
            ok = before == 0 or before + period <= now
            a = newest
            b = period
          end
        end
        if ok == nil or form == LAST and v and #v ~= z and not ordered then
          missing = not take
          local done, x = not missing, v
          if done and form < WHOLE then
            if not ordered then
              done, x = pcall(sorted, v, first + size * start, size)
              if done then
                sized = x ~= v
                own = x
                v = x
                ordered = true
              end
            end
            if done and ok == nil then
              z = begin + 6 + read('>I7', v, begin) % LENGTHS
              x = z > begin + 6 and sub(v, begin + 7, z)
            end
          elseif done and form == IN_PARTS then
            x = call('GET', key)
            v = x
          end
          if done and ok == nil then
            own = false
            if x then
              done, own, others = pcall(take, algorithm, x, place)
              if done and own and form < WHOLE then own = tagged(own, place) end
              x = own
            end
            if done then
              o = 1
              ok, a, b, c, d, e, f, g, h = admits(algorithm, own, n, key, place, others)
              done = ok ~= nil
              x = ANOTHER
              grown = grown + div(max(#v, own and #own or 0), 7)
            end
          end
          if not done then
            if not missing then failed = x end
            i = asked
            break
          end
        end

        if trying then
          if ok then
            if v and own == v and form < WHOLE then own = sub(v, begin, z) end
            trying = most(algorithm, own, key, place, n, n + trying) - n
          end
          if not ok or i == asked - 1 then -- begin, with what all admit, or without
            allowed = ok
            extra = ok and trying or nil
            charged = extra or 0
            trying = nil
            waiting = nil
            grown = 0
            i = 0
            break
          end
        elseif allowed and not ok and i > 0 then -- begin, refused
          allowed = false
          extra = nil
          waiting = nil
          over = nil
          grown = 0
          i = 0
          break
        else
          local new, life, state, patch, patches
          if not ok then allowed = false end
          if form == IN_PARTS and not others and (allowed and mode ~= PEEK or not allowed and denied == 1) then
            local more = 0
            if algorithm == 4 then -- sl3
              -- The size of the ring that n more units need, if they need another.
              if own and e < logLimit and c + n > e then more = max(c + n, min(2 * e, max(a, logLimit))) end
            end
            grown = grown + more
          end
          if grown > 0 then over = words + grown > MAXWORDS and #questions > #used + after - pos end
          if allowed then
            if mode == PEEK then
              n = 0
            elseif not over then
              if algorithm == 1 then -- tb2
                local till = now + a
                state = pack('>I7I7', till, b)
                if d and d - d % e == till - till % e then
                  life = 0
                  patch = state
                else
                  -- The life goes beyond the end of the quarter that T is in, by the clock, so that one write in
                  -- each quarter has to look at the life that the value has.
                  life = a + e + 1
                end
                if others or not patch then new = sub(numbers, place, place + 13) .. pack('>I7', c) .. state end
              elseif algorithm == 2 then -- fw2
                state = pack('>I7I7', a, b + n)
                if b > 0 then
                  life = 0
                  patch = state
                else
                  life = a + c - now
                end
                if others or not patch then new = sub(numbers, place, place + 6) .. state end
              elseif algorithm == 3 then -- sw2
                if b > 0 then
                  life = 0
                  patch = pack('>I7I7', a, b + n)
                end
                if others or not patch then
                  new = pushed(own, o, place, a, b + n, c)
                  life = life or a + d - now
                end
                if own then state = #own == 35 + 7 * k and own or sub(own, o, o + 34 + 7 * k) end
              elseif algorithm == 4 then -- sl3
                local latest = now > d and now or d
                if own and d - d % logQuarter == latest - latest % logQuarter then
                  life = 0
                else
                  -- The life goes on from the end of the quarter of the period that the entry is in, by the clock,
                  -- so that one write in each quarter has to look at the life that the value has.
                  life = latest - latest % logQuarter + logQuarter + logPeriod - now
                end
                if c == 0 then f = latest end
                state = pack(HEADER, logPeriod, latest, f, a, b, c + n, e)
                local last = HEAD + 7 * ((b + c) % e)
                if n == 1 and own and c < e and last < BEGINNING and not others then -- as push does, which is for the rest
                  patch = state .. sub(own, HEAD + 1, last) .. sub(state, 8, 14)
                else
                  new, patch, patches = push(own, not others and key, logPeriod, a, b, c, e, n, latest)
                end
              elseif algorithm == 5 then -- mi2
                local newest = max(now, a)
                state = pack('>I7I7', newest, newest)
                new, life = sub(numbers, place, place + 6) .. state, newest + b - now
              end
            end
          elseif denied == 1 and not over then
            if algorithm == 2 then -- fw2
              state = pack('>I7I7', a, max(b, min(b + min(n, d), d)))
              new = sub(numbers, place, place + 6) .. state
              life = a + c - now
            elseif algorithm == 3 then -- sw2
              local most = read('>I7', numbers, place + 35)
              new = pushed(own, o, place, a, max(b, min(b + min(n, most), most)), c)
              life = a + d - now
              if own then state = #own == 35 + 7 * k and own or sub(own, o, o + 34 + 7 * k) end
            elseif algorithm == 4 then -- sl3
              local units = min(n, logLimit)
              local latest, gone = max(now, d), max(c + units - max(logLimit, c), 0)
              local first, count = (b + gone) % e, c - gone
              -- What is waited for: entries that stay, or those of now.
              local one, wait = max(count + units - logLimit, 0), max(count + 2 * units - logLimit, 0)
              one = one < count and at(own, key, first, e, one) or latest
              wait = wait > 0 and (wait <= count and at(own, key, first, e, wait - 1) or latest) or 0
              state = pack('>I7I7I7I7', count + units, wait, one, latest)
              new, patch, patches = push(own, not others and key, logPeriod, a, first, count, e, units, latest)
              life = latest - latest % logQuarter + logQuarter + logPeriod - now
              if own and d - d % logQuarter == latest - latest % logQuarter then life = 0 end
            end
            if mode == PEEK then life = nil end -- only the state is as Allow would answer it
          end
          if others and mode ~= PEEK and not over and (life or own) then
            if not new then new = form < WHOLE and sub(own, 8) or own end
            new, life = join(algorithm, new, others, allowed and n or 0)
            if form < WHOLE then new = tagged(new, place) end
            patch = nil
            patches = nil
          elseif new and form < WHOLE then
            new = sub(numbers, place - 7, place - 1) .. new
          end
          if life then
            local left, right = begin, z
            if patch then
              left = begin + PATCHED[algorithm]
              right = left + #patch - 1
              new = patch
            elseif form >= WHOLE then
              right = v and #v or 0
              sized = true
              list = patches
            elseif #new ~= z + 1 - begin then
              sized = true
            end
            if from then
              changed = changed .. sub(v or '', upto + 1, left - 1) .. new
            else
              from = left
              changed = new
            end
            upto = right
            if life > lives then lives = life end
          end
          if not state then
            if algorithm == 1 then -- tb2
              if own then state = sub(own, o + 28, o + 41) end
            elseif algorithm == 2 then -- fw2
              if own then state = sub(own, o + 14, o + 27) end
            elseif algorithm == 3 then -- sw2
              if own then state = #own == 35 + 7 * k and own or sub(own, o, o + 34 + 7 * k) end
            elseif algorithm == 4 then -- sl3
              -- Allowed, as a charge replies. Or the number of entries, and the instants that must expire before n
              -- units fit, before one more does, and before nothing is used.
              if allowed then
                state = pack(HEADER, logPeriod, d, f, a, b, c, e)
              else
                local wait, one, all, over = 0, 0, 0, c + n - logLimit
                if c > 0 then
                  if over > 0 and over <= c then wait = at(own, key, b, e, over - 1) end
                  one = f
                  all = d
                  if c > logLimit then one = at(own, key, b, e, c - logLimit) end
                end
                state = pack('>I7I7I7I7', c, wait, one, all)
              end
            elseif algorithm == 5 then -- mi2
              if own then state = sub(own, o + 14, o + 27) end
            end
          end
          local piece = last + 2 * i
          if not state then
            out[piece + 1] = ok and (allowed and '\3' or '\1') or '\0'
            out[piece + 2] = ''
          else
            out[piece + 1] = ok and (allowed and '\7' or '\5') or '\4'
            out[piece + 2] = state
          end
        end
        i = i + 1
        if form ~= MORE then break end
        begin = z + 1
        local where = first + size * i
        algorithm, denied, form, number, high, low = byte(questions, where, where + 5)
      until false

      if i < asked then -- another value, or all again
        if from and i > 0 then waiting = {waiting, key, number, v, list, changed, lives, from, upto, sized} end
        local where = first + size * i
        algorithm, denied, form, number, high, low = byte(questions, where, where + 5)
      elseif over and not failed and not missing then
        failed = {words = grown}
      elseif not failed and not missing then
        words = words + grown
        repeat
          if from then
            -- The bytes of v from byte from to byte upto become changed; it may be of another length only if
            -- sized is set. Or, of a log, list has patches. lives is its life.
            --
            -- A new value is kept for half as much again as it counts, so that few writes have to renew
            -- that. A life is never shortened, as others of the records, or a limiter of the same name with
            -- other numbers, may need the longer one; a life of 0 means the present one. In tests with an
            -- instant of their own nothing expires.
            -- An error, such as READONLY or OOM, is that of the whole call.
            local new, done
            if v and lives == 0 and not sized then
              done = try('SETRANGE', key, OFFSETS[from] or from - 1, changed)
            else
              local least = lives > 0 and (lives + 1999 - (lives + 999) % 1000) / 1000 or 1
              if given then least = 3600000 end
              local most = least + (least - least % 2) / 2
              local renew = v and lives > 0 and call('PTTL', key) < least
              if list then
                for j = 1, #list, 2 do
                  if list[j + 1] ~= '' then done = try('SETRANGE', key, list[j], list[j + 1]) end
                end
                if renew then call('PEXPIRE', key, most) end
              elseif not v then -- not over a value of another type, which MGET returns as none
                new = changed
                done = try('SET', key, new, 'PX', most, 'NX')
                if not done then failed, new = ANOTHER, nil end
              elseif sized or renew and #v ~= BEGINNING then -- of a long log, v may be no more than that
                new = sub(v, 1, from - 1) .. changed .. sub(v, upto + 1)
                if renew then
                  done = try('SET', key, new, 'PX', most)
                else
                  done = try('SET', key, new, 'KEEPTTL')
                end
              else
                done = try('SETRANGE', key, OFFSETS[from] or from - 1, changed)
                if renew then call('PEXPIRE', key, most) end
              end
            end
            if type(done) == 'table' and done.err then return done end
            values[number] = new
          end
          from = nil
          if waiting then waiting, key, number, v, list, changed, lives, from, upto, sized = unpack(waiting, 1, 10) end
        until not from
      end
    end

    if not missing then
      if failed then
        for j = #out, last + 1, -1 do out[j] = nil end
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
      elseif extra then
        out[last + 1] = out[last + 1] .. pack('>I7', extra)
      end
      pos = after
      last = last + pieces
    end
  end
until not missing
return concat(out)
