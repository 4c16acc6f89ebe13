-- The twin of slidingwindow.go. A value is period, resolution, then start, c0 ... ck.
do
  local PERIOD, K, LIMIT, SUB, NEVEROVER, MOST = 1, 2, 3, 4, 5, 6

  -- product returns a*b exactly, in digits of 2^26 after the first.
  local B = 67108864
  local function product(a, b)
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

  -- kept returns the start of the newest sub-window that was counted in, and all
  -- counts from it on. Under other numbers, each goes where its events may have
  -- happened at the latest.
  local function kept(m, v, now)
    local k, span = m[K], m[SUB]
    if sub(v, 1, 14) == m.header then
      local c = {read(m.words, v, 15)}
      if c[k + 3] then table.remove(c) end
      return table.remove(c, 1), c
    end
    local c = {}
    for i = 1, k + 1 do c[i] = 0 end
    local period, oldk, newest = read('>I7I7I7', v, 1)
    local oldspan = div(period + oldk - 1, oldk)
    local latest = max(now, newest)
    local start = latest - latest % span
    for i = 0, oldk do
      local last = min(newest - i * oldspan + oldspan - 1, latest)
      local back = (start - (last - last % span)) / span
      if back <= k then c[back + 1] = min(c[back + 1] + read('>I7', v, 22 + 7 * i), 9007199254740991) end
    end
    return start, c
  end

  -- counts is kept, moved on to the sub-window of now.
  local function counts(m, v, now)
    local k, span = m[K], m[SUB]
    local start = now - now % span
    if not v then
      local c = {}
      for i = 1, k + 1 do c[i] = 0 end
      return start, c
    end
    local last, c = kept(m, v, now)
    for _ = 1, min((start - last) / span, k + 1) do
      table.remove(c)
      table.insert(c, 1, 0)
    end
    return max(start, last), c
  end

  local function store(m, now, start, c)
    local life = 0
    for i = 1, #c do
      if c[i] > 0 then
        life = start + (m[K] + 2 - i) * m[SUB] - now
        break
      end
    end
    return m.header .. pack(m.words, start, unpack(c)), life
  end

  twins[3] = {
    format = '>I7I7I7I7I7I7', header = 2, limit = LIMIT,

    prepare = function(m) m.words = '>' .. rep('I7', m[K] + 2) end,

    admits = function(m, v, now, n)
      local start, c = counts(m, v, now)
      local k = m[K]
      local room = m[LIMIT] - n
      for i = 1, k do room = room - c[i] end
      local old = c[k + 1]
      if room < 0 then return false, start, c end
      if m[NEVEROVER] == 1 then return old <= room, start, c end
      local offset = max(now - start, 0)
      return old == 0 or atmost(old, m[SUB] - offset, room, m[SUB]), start, c
    end,

    charge = function(m, _, now, n, start, c)
      c[1] = c[1] + n
      return store(m, now, start, c)
    end,

    refuse = function(m, _, now, n, start, c)
      local most = m[MOST]
      c[1] = max(c[1], min(c[1] + min(n, most), most))
      return store(m, now, start, c)
    end,

    adopt = function(m, v, now)
      if sub(v, 1, 14) == m.header then return nil end
      return store(m, now, kept(m, v, now))
    end,

    giveback = function(m, v, now, charged, n)
      if sub(v, 1, 14) ~= m.header then return nil end
      local start, c = kept(m, v, now)
      local back = (start - (charged - charged % m[SUB])) / m[SUB]
      if back >= 0 and back <= m[K] then
        c[back + 1] = max(c[back + 1] - n, 0)
      end
      return store(m, now, start, c)
    end,
  }
end
