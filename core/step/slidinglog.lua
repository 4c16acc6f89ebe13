-- The twin of slidinglog.go. The numbers of a policy are period, limit. A value is period,
-- most, first, count, newest, size, then the ring of size entries: most is the largest limit
-- that it is kept for.
--
-- Of a long log, own is the beginning: the header and 64 entries. A ring of no more is read
-- whole, and written whole if it is short; a longer one by range, so that a charge reads the
-- beginning and writes the header and an entry, however long the ring is.

--@helpers
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

--@admits
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

--@charge
local latest = now > d and now or d
state = pack('>I7I7I7I7', c + n, 0, c == 0 and latest or f, latest)
new, life = push(own, not others and key, g, a, b, c, e, n, latest), loglife(own, d, latest, g)

--@refuse
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

--@state
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

--@grows
-- The size of the ring that n more units need, if they need another.
if own and e < h and c + n > e then more = max(c + n, min(2 * e, max(a, h))) end

--@size
if own then more = read('>I7', own, 36) end

--@rare
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
