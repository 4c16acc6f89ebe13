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
