-- The twin of slidinglog.go. The numbers of a policy are period, limit. A value is period,
-- newest, oldest, then in two bytes each most, first, count, size, then the ring of size entries:
-- oldest is the first of these, and most the largest limit that it is kept for.
--
-- Of a long log, own is the beginning: the header and 64 entries. A ring of no more is read
-- whole, and its beginning is written, up to the entry that is new: one command. Of a longer one
-- the header and the entry are written by range, so that a charge takes as long, however long
-- the ring is.

--@helpers
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

--@admits
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

--@charge
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

--@refuse
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

--@state
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

--@grows
-- The size of the ring that n more units need, if they need another.
if own and e < logLimit and c + n > e then more = max(c + n, min(2 * e, max(a, logLimit))) end

--@rare
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
