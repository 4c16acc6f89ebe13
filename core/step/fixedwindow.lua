-- The twin of fixedwindow.go. A value is period, then start, count.
do
  local PERIOD, LIMIT = 1, 2

  -- kept returns the window that was counted in last, and its count. Under other
  -- numbers, that is where its events may have happened at the latest.
  local function kept(m, v, now)
    local start, count = read('>I7I7', v, 8)
    if sub(v, 1, 7) ~= m.header then
      local last = min(start + read('>I7', v, 1) - 1, max(now, start))
      start = last - last % m[PERIOD]
    end
    return start, count
  end

  local function at(m, v, now)
    local start = now - now % m[PERIOD]
    if not v then return start, 0 end
    local last, count = kept(m, v, now)
    if last < start then return start, 0 end
    return last, count
  end

  local function store(m, now, start, count)
    return m.header .. pack('>I7I7', start, count), start + m[PERIOD] - now
  end

  twins[2] = {
    format = '>I7I7', header = 1, limit = LIMIT,

    admits = function(m, v, now, n)
      local start, count = at(m, v, now)
      return n <= m[LIMIT] - count, start, count
    end,

    charge = function(m, _, now, n, start, count)
      return store(m, now, start, count + n)
    end,

    refuse = function(m, _, now, n, start, count)
      local limit = m[LIMIT]
      return store(m, now, start, max(count, min(count + min(n, limit), limit)))
    end,

    adopt = function(m, v, now)
      if sub(v, 1, 7) == m.header then return nil end
      return store(m, now, kept(m, v, now))
    end,

    giveback = function(m, v, now, charged, n)
      if sub(v, 1, 7) ~= m.header then return nil end
      local start, count = kept(m, v, now)
      if start == charged - charged % m[PERIOD] then
        count = max(count - n, 0)
      end
      return store(m, now, start, count)
    end,
  }
end
