-- The twin of slidinglog.go. A value is first, count, newest, then the ring.
--
-- A ring of a low limit is read and written whole. That of a higher one is
-- addressed by range: a charge reads the header and an entry or two, and writes
-- the header and an entry, however long the ring is.
do
  local PERIOD, LIMIT = 1, 2
  local WHOLE = 64 -- the highest limit whose ring is read whole
  local HEAD = 21  -- bytes before the ring

  -- open returns the ring of a value, or of a key. at(i) is its i-th oldest
  -- entry, from 0.
  local function open(m, v, key)
    local r = {first = 0, count = 0, newest = 0, size = 0, known = {}}
    if m.ranged then
      local head = call('GETRANGE', key, 0, HEAD - 1)
      if head == '' then return r end
      r.first, r.count, r.newest = words(head, 1, 3)
      r.size = (call('STRLEN', key) - HEAD) / 7
    elseif v then
      r.first, r.count, r.newest = words(v, 1, 3)
      r.size = (#v - HEAD) / 7
    end
    function r.at(i)
      local known = r.known[i]
      if known then return known end
      local place = HEAD + 7 * ((r.first + i) % r.size)
      local x
      if m.ranged then
        x = words(call('GETRANGE', key, place, place + 6), 1, 1)
      else
        x = words(v, place + 1, 1)
      end
      r.known[i] = x
      return x
    end
    return r
  end

  -- expired returns how many of the oldest entries have expired.
  local function expired(m, r, now)
    local count = r.count
    if count == 0 then return 0 end
    local cut = max(now, r.newest) - m[PERIOD]
    if r.at(0) > cut then return 0 end
    local step = 1
    while step < count and r.at(step) <= cut do step = step * 2 end
    local lo, hi = div(step, 2), min(step, count)
    while hi - lo > 1 do
      local mid = lo + div(hi - lo, 2)
      if r.at(mid) <= cut then lo = mid else hi = mid end
    end
    return hi
  end

  -- relay returns the ring bytes of the live entries and then n times x, in a
  -- ring of size places, beginning with the oldest.
  local function relay(r, dead, n, x, size)
    local out = {}
    for i = dead, r.count - 1 do out[#out + 1] = pack(r.at(i)) end
    out[#out + 1] = string.rep(pack(x), n)
    out[#out + 1] = string.rep('\0', 7 * (size - (r.count - dead) - n))
    return table.concat(out)
  end

  -- push drops the dead and appends n times now.
  local function push(m, v, now, n, r, dead, key)
    local live = r.count - dead
    local x = max(now, r.newest)
    local life = x + m[PERIOD] - now
    local size = r.size
    if live + n > size then
      size = max(live + n, min(2 * max(size, 4), m[LIMIT]))
      if m.ranged and r.count > dead then -- read it in one go
        local all = call('GET', key)
        r.known = {}
        local first, old = r.first, r.size
        r.at = function(i) return (words(all, HEAD + 7 * ((first + i) % old) + 1, 1)) end
      end
      v = pack(0, live + n, x) .. relay(r, dead, n, x, size)
      if m.ranged then
        call('SET', key, v, 'PX', px(life, key))
        return nil
      end
      return v, life
    end

    local first = (r.first + dead) % size
    local from = (first + live) % size
    local straight = min(n, size - from) -- the rest wraps around
    local head = pack(first, live + n, x)
    local entries = string.rep(pack(x), straight)
    local wrapped = string.rep(pack(x), n - straight)
    if m.ranged then
      call('SETRANGE', key, 0, head)
      call('SETRANGE', key, HEAD + 7 * from, entries)
      if wrapped ~= '' then call('SETRANGE', key, HEAD, wrapped) end
      call('PEXPIRE', key, px(life, key))
      return nil
    end
    local ring = sub(v, HEAD + 1, HEAD + 7 * from) .. entries .. sub(v, HEAD + 7 * (from + straight) + 1)
    if wrapped ~= '' then ring = wrapped .. sub(ring, #wrapped + 1) end
    return head .. ring, life
  end

  twins[4] = {
    header = 0, limit = LIMIT,

    ranged = function(m) return m[LIMIT] > WHOLE end,

    admits = function(m, v, now, n, key)
      local r = open(m, v, key)
      local over = r.count + n - m[LIMIT] -- entries that must have expired
      if over <= 0 then return true, r end
      if over > r.count then return false, r end
      return max(now, r.newest) - r.at(over - 1) >= m[PERIOD], r
    end,

    charge = function(m, v, now, n, r, _, key)
      return push(m, v, now, n, r, expired(m, r, now), key)
    end,

    refuse = function(m, v, now, n, r, _, key)
      n = min(n, m[LIMIT])
      local dead = expired(m, r, now)
      local live = r.count - dead
      dead = dead + max(live + n - max(m[LIMIT], live), 0)
      return push(m, v, now, n, r, dead, key)
    end,

    giveback = function(m, v, now, at, n, key)
      local r = open(m, v, key)
      local dead = expired(m, r, now)
      local live = r.count - dead
      local life = r.newest + m[PERIOD] - now
      if live == 0 or max(now, r.newest) - at >= m[PERIOD] then
        if m.ranged then return nil end
        return v, life
      end
      n = min(n, live)
      local head = pack((r.first + dead + n) % r.size, live - n, r.newest)
      if m.ranged then
        call('SETRANGE', key, 0, head)
        return nil
      end
      return head .. sub(v, HEAD + 1), max(life, r.newest - now)
    end,

    -- view is the number of live entries, and the instants that must expire
    -- before n units fit, before one more does, and before nothing is used.
    view = function(m, v, now, n, key)
      local r = open(m, v, key)
      local dead = expired(m, r, now)
      local live = r.count - dead
      if live == 0 then return pack(0, 0, 0, 0) end
      local over, wait = live + n - m[LIMIT], 0
      if over > 0 and over <= live then wait = r.at(dead + over - 1) end
      return pack(live, wait, r.at(dead + max(live - m[LIMIT], 0)), r.at(r.count - 1))
    end,
  }
end
