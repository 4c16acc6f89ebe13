-- The twin of slidinglog.go. A value is period, first, count, newest, size, then
-- the ring of size entries.
--
-- A ring of a low limit is read and written whole. That of a higher one is
-- addressed by range: a charge reads the header and a few entries, and writes the
-- header and an entry, however long the ring is.
do
  local PERIOD, LIMIT = 1, 2
  local WHOLE = 64 -- the highest limit whose ring is read whole
  local HEAD = 35  -- bytes before the ring
  local AHEAD = 4  -- entries that are read at once by range

  -- at returns the i-th oldest entry of a ring, from 0.
  local function at(r, i)
    local place = r.first + i
    if place >= r.size then place = place - r.size end
    if r.v then return (read('>I7', r.v, HEAD + 1 + 7 * place)) end
    local known = r.known[place]
    if known then return known end
    local from = HEAD + 7 * place
    local bytes = call('GETRANGE', r.key, from, from + 7 * min(AHEAD, r.size - place) - 1)
    for k = 0, #bytes / 7 - 1 do r.known[place + k] = read('>I7', bytes, 7 * k + 1) end
    return r.known[place]
  end

  -- open returns a ring to work with, and the value's first bytes.
  local function open(m, v, key)
    local head = v
    if m.ranged then
      head = call('GETRANGE', key, 0, HEAD - 1)
      if head == '' then head = false end
    end
    if not head then -- as if there were an empty one
      return {first = 0, count = 0, newest = 0, size = min(m[LIMIT], 4), key = key, known = {}, absent = true}
    end
    local first, count, newest, size = read('>I7I7I7I7', head, 8)
    local r = {first = first, count = count, newest = newest, size = size}
    if m.ranged then
      r.key, r.known = key, {}
    else
      r.v = v
    end
    return r, head
  end

  -- expired returns how many of the oldest entries have expired.
  local function expired(m, r, now)
    local count = r.count
    if count == 0 then return 0 end
    local cut = max(now, r.newest) - m[PERIOD]
    if at(r, 0) > cut then return 0 end
    local step = 1
    while step < count and at(r, step) <= cut do step = step * 2 end
    local lo, hi = div(step, 2), min(step, count)
    while hi - lo > 1 do
      local mid = lo + div(hi - lo, 2)
      if at(r, mid) <= cut then lo = mid else hi = mid end
    end
    return hi
  end

  local function drop(r, n)
    r.first, r.count = (r.first + n) % r.size, r.count - n
  end

  -- relay makes a ring of another size, oldest entry first, and room for n more.
  local function relay(m, r, n)
    if r.count + n > r.size then
      r.size = max(r.count + n, min(2 * r.size, m[LIMIT]))
    elseif not r.absent then
      return false
    end
    local live = ''
    if r.count > 0 then
      local v = r.v or call('GET', r.key)
      local old = (#v - HEAD) / 7
      local straight = min(r.count, old - r.first)
      live = sub(v, HEAD + 1 + 7 * r.first, HEAD + 7 * (r.first + straight))
        .. sub(v, HEAD + 1, HEAD + 7 * (r.count - straight))
    end
    r.first, r.ring = 0, live .. rep('\0', 7 * (r.size - r.count))
    return true
  end

  local function header(m, r)
    return m.header .. pack('>I7I7I7I7', r.first, r.count, r.newest, r.size)
  end

  -- push appends n times now.
  local function push(m, r, now, n, key)
    local fresh, relaid = r.absent, relay(m, r, n)
    r.newest = max(now, r.newest)
    local place = r.first + r.count
    if place >= r.size then place = place - r.size end
    r.count = r.count + n
    local straight = min(n, r.size - place) -- the rest wraps around
    local entries = rep(pack('>I7', r.newest), straight)
    local wrapped = rep(pack('>I7', r.newest), n - straight)
    local life = r.newest + m[PERIOD] - now

    if m.ranged and not relaid then
      call('SETRANGE', key, 0, header(m, r))
      call('SETRANGE', key, HEAD + 7 * place, entries)
      if n > straight then call('SETRANGE', key, HEAD, wrapped) end
      local ms = px(life, key)
      if ms then call('PEXPIRE', key, ms) end
      for k = place, place + straight - 1 do r.known[k] = r.newest end
      for k = 0, n - straight - 1 do r.known[k] = r.newest end
      return nil
    end
    local ring = r.ring or sub(r.v, HEAD + 1)
    ring = sub(ring, 1, 7 * place) .. entries .. sub(ring, 7 * (place + straight) + 1)
    if n > straight then ring = wrapped .. sub(ring, #wrapped + 1) end
    local v = header(m, r) .. ring
    r.v, r.ring = v, nil
    if m.ranged then
      local ms = px(life, not fresh and key)
      if ms then call('SET', key, v, 'PX', ms) else call('SET', key, v, 'KEEPTTL') end
      return nil
    end
    return v, life
  end

  twins[4] = {
    format = '>I7I7', header = 1, limit = LIMIT,

    prepare = function(m) m.ranged = m[LIMIT] > WHOLE end,

    admits = function(m, v, now, n, key)
      local r = open(m, v, key)
      local over = r.count + n - m[LIMIT] -- entries that must have expired
      if over <= 0 then return true, r end
      if over > r.count then return false, r end
      return max(now, r.newest) - at(r, over - 1) >= m[PERIOD], r
    end,

    charge = function(m, _, now, n, r, _, key)
      drop(r, expired(m, r, now))
      return push(m, r, now, n, key)
    end,

    refuse = function(m, _, now, n, r, _, key)
      n = min(n, m[LIMIT])
      drop(r, expired(m, r, now))
      drop(r, max(r.count + n - max(m[LIMIT], r.count), 0))
      return push(m, r, now, n, key)
    end,

    giveback = function(m, v, now, charged, n, key)
      local r, head = open(m, v, key)
      if sub(head, 1, 7) ~= m.header then return nil end
      local dead = expired(m, r, now)
      local live = r.count - dead
      if live > 0 and max(now, r.newest) - charged < m[PERIOD] then drop(r, dead + min(n, live)) end
      if m.ranged then
        call('SETRANGE', key, 0, header(m, r))
        return nil
      end
      return header(m, r) .. sub(v, HEAD + 1), r.newest + m[PERIOD] - now
    end,

    -- view is the number of live entries, and the instants that must expire
    -- before n units fit, before one more does, and before nothing is used.
    view = function(m, now, n, r)
      local dead = expired(m, r, now)
      local live = r.count - dead
      if live == 0 then return pack('>I7I7I7I7', 0, 0, 0, 0) end
      local over, wait = live + n - m[LIMIT], 0
      if over > 0 and over <= live then wait = at(r, dead + over - 1) end
      return pack('>I7I7I7I7', live, wait, at(r, dead + max(live - m[LIMIT], 0)), at(r, r.count - 1))
    end,
  }
end
