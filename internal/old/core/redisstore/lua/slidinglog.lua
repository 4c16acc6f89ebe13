-- Mirrors slidinglog.go. A log is period, newest, oldest, then in two bytes each most, first, count,
-- size, then over, then the ring of size entries: oldest is the first of these, and most the largest
-- limit that it is kept for. The numbers are period, limit.
--
-- Of a long log, v is the beginning of the value: the header and 64 entries. A ring of no more is
-- read whole, and its beginning is written, up to the entry that is new: one command. Of a longer
-- one the header and the entry are written by range, so that a charge takes as long, however long
-- the ring is.
local HEAD, HEADER = 36, '>I7I7I7I2I2I2I2' -- before the ring, and without over
local MAXLOG = 16384                       -- units of a log
local BEGINNING = 491                      -- bytes that are read of a long log

local entry, split, push -- which the functions in rare use too
if usesLogs > 0 then
  -- entry mirrors entry in slidinglog.go: the i-th oldest entry, from 0. One that is missing has
  -- expired.
  function entry(v, from, number, first, size, i)
    from = from + HEAD + 7 * ((first + i) % size)
    if from <= #v then return (read('>I7', v, from)) end
    local word = redis.call('GETRANGE', KEYS[number], from - 1, from + 5)
    return #word == 7 and (read('>I7', word, 1)) or 0
  end

  -- split mirrors slidingLog.split. It returns how many of the oldest entries have expired, the first
  -- being one of them.
  function split(v, from, number, first, count, size, cut)
    local step = 1
    while step < count and entry(v, from, number, first, size, step) <= cut do step = step * 2 end
    local lo, hi = (step - step % 2) / 2, step < count and step or count
    while hi - lo > 1 do
      local mid = lo + (hi - lo - (hi - lo) % 2) / 2
      if entry(v, from, number, first, size, mid) <= cut then lo = mid else hi = mid end
    end
    return hi
  end

  -- grown mirrors slidingLog.grow: the ring in its new size, oldest entry first.
  local function grown(v, from, number, first, count, old, size)
    if not v then return string.rep('\0', 7 * size) end
    if #v < from - 1 + HEAD + 7 * old then v = redis.call('GET', KEYS[number]) end
    local ring = from + HEAD
    local straight = math.min(count, old - first)
    local live = sub(v, ring + 7 * first, ring - 1 + 7 * (first + straight)) .. sub(v, ring, ring - 1 + 7 * (count - straight))
    return live .. string.rep('\0', 7 * size - #live)
  end

  -- push mirrors slidingLog.push. It returns new, left, right, as charge does.
  function push(v, from, number, period, most, first, count, size, n, newest, over)
    local oldest = count == 0 and newest or entry(v, from, number, first, size, 0)
    local stored, ring = from > 1, nil
    if not v or count + n > size then
      local old = size
      if count + n > size then size = math.max(count + n, math.min(2 * size, most)) end
      ring, first = grown(v, from, number, first, count, old, size), 0
    elseif not stored then
      ring = sub(v, from + HEAD)
    end
    local at, one = (first + count) % size, pack('>I7', newest)
    local head = pack(HEADER .. 'I7', period, newest, oldest, most, first, count + n, size, over)
    local straight = math.min(n, size - at) -- the rest wraps around
    local wrapped, entries = n - straight, string.rep(one, straight)
    if ring then
      return head .. string.rep(one, wrapped) .. sub(ring, 1 + 7 * wrapped, 7 * at) .. entries .. sub(ring, 1 + 7 * (at + straight))
    end
    local behind = from - 1 + HEAD + 7 * at
    if wrapped == 0 and behind < BEGINNING then return head .. sub(v, from + HEAD, behind) .. entries, from, behind + #entries end
    return {from - 1, head, behind, entries, from - 1 + HEAD, string.rep(one, wrapped)}, from, from - 1
  end

  -- The policy that was asked, and its numbers.
  local asked, period, limit

  -- admits mirrors slidingLog.Admits. It returns what the header has, without the entries that have
  -- expired: most, first, count, newest, size, oldest.
  local function admits(v, from, n, place, number)
    if place ~= asked then asked, period, limit = place, read('>I7I7', numbers, place + 7) end
    local stored = from > 1
    if not v then return n <= limit, 0, limit, 0, 0, 0, limit < 4 and limit or 4, 0 end
    if #v < from + HEAD then return end
    local of, newest, oldest, most, first, count, size = read(HEADER, v, from)
    local length = from - 1 + HEAD + 7 * size
    if of ~= period or first >= size or count > size or most > MAXLOG then return end
    if #v ~= length and (#v ~= BEGINNING or #v > length or size > MAXLOG) then return end
    if stored and newest - now > of then return end
    if most < limit then most = limit end
    if count > 0 then
      local cut = (now > newest and now or newest) - period
      if oldest <= cut then
        local dead = split(v, from, number, first, count, size, cut)
        first = (first + dead) % size
        count = count - dead
        if count > 0 then oldest = entry(v, from, number, first, size, 0) end
      end
    end
    if stored and most > limit and count == 0 and (newest <= now or entry(v, from, number, first, size, -1) + period <= now) then
      most = limit -- what it is kept for is over
    end
    return n <= limit - count, #v, most, first, count, newest, size, oldest
  end

  -- charge mirrors slidingLog.Charge.
  local function charge(v, from, n, place, number, most, first, count, newest, size, oldest)
    if place ~= asked then asked, period, limit = place, read('>I7I7', numbers, place + 7) end
    local latest = now > newest and now or newest
    if count == 0 then oldest = latest end
    local head = pack(HEADER, period, latest, oldest, most, first, count + n, size)
    local behind = from - 1 + HEAD + 7 * ((first + count) % size)
    local stored = from > 1
    if stored and v and n == 1 and count < size and behind < BEGINNING then -- as push does, which is for the rest
      return head .. '\0\0\0\0\0\0\0' .. sub(v, from + HEAD, behind) .. sub(head, 8, 14), from, behind + 7, latest + period, head
    end
    local new, left, right = push(v, from, number, period, most, first, count, size, n, latest, 0)
    return new, left, right, latest + period, head
  end

  -- refuse mirrors slidingLog.Refuse. With need it mirrors Report: then as many of the newest stay as the log
  -- is kept for, and the reply is about need more.
  local function refuse(v, from, n, place, number, most, first, count, newest, size, _, need)
    local period, limit = read('>I7I7', numbers, place + 7)
    local upto = need and most or limit
    local units = math.min(n, upto)
    local latest, gone = math.max(now, newest), math.max(count + units - math.max(upto, count), 0)
    local over = n - units + gone
    if v and read('>I2', v, from + 25) == count then over = over + read('>I7', v, from + 29) end -- or they have expired
    first, count = (first + gone) % size, count - gone
    -- What is waited for: entries that stay, or those of now.
    local one, wait = math.max(count + units - limit, 0), math.max(count + units + (need or n) - limit, 0)
    one = one < count and entry(v, from, number, first, size, one) or latest
    wait = wait > 0 and (wait <= count and entry(v, from, number, first, size, wait - 1) or latest) or 0
    local new, left, right = push(v, from, number, period, most, first, count, size, units, latest, math.min(over, 9007199254740991))
    return new, left, right, latest + period, pack('>I7I7I7I7', count + units, wait, one, latest)
  end

  -- reply is the header if the question is allowed; or the number of entries, and the instants that must
  -- expire before n units fit, before one more does, and before nothing is used.
  local function reply(v, from, n, place, number, allowed, most, first, count, newest, size, oldest)
    local period, limit = read('>I7I7', numbers, place + 7)
    if allowed then return pack(HEADER, period, newest, oldest, most, first, count, size) end
    local wait, one, all, over = 0, 0, 0, count + n - limit
    if count > 0 then
      if over > 0 and over <= count then wait = entry(v, from, number, first, size, over - 1) end
      one = count > limit and entry(v, from, number, first, size, count - limit) or oldest
      all = newest
    end
    return pack('>I7I7I7I7', count, wait, one, all)
  end

  -- grows returns the size of the ring that n more units need, if they need another.
  local function grows(n, place, most, _, count, _, size)
    local limit = read('>I7', numbers, place + 14)
    if size >= limit or count + n <= size then return 0 end
    return math.max(count + n, math.min(2 * size, math.max(most, limit)))
  end

  steps[4] = {admits = admits, charge = charge, refuse = refuse, reply = reply, grows = grows}
end
