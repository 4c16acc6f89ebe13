-- The twin of slidingwindow.go. A value is period, resolution, then start, c0 ... ck.

--@helpers
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
local function atmost(a, b, c, d)
  local x, y = a * b, c * d
  if x < 9007199254740992 and y < 9007199254740992 then return x <= y end
  local x2, x1, x0 = product(a, b)
  local y2, y1, y0 = product(c, d)
  if x2 ~= y2 then return x2 < y2 end
  if x1 ~= y1 then return x1 < y1 end
  return x0 <= y0
end

-- countlife is how long the counts of sub-windows so long will count.
local function countlife(start, c, span)
  for i = 1, #c do
    if c[i] > 0 then return start + (#c + 1 - i) * span - now end
  end
  return 0
end

-- iscounts reports whether v begins with the numbers of a sliding window and is as long
-- as they say.
local function iscounts(v)
  local k = isperiod(v) and read('>I7', v, 8) or 0
  return k >= 1 and k <= 1000 and #v == 28 + 7 * k
end
--@end

twins[3] = function(p)
  --@constants PERIOD, K, LIMIT, SPAN, NEVEROVER, MOST, HEADER, WORDS
  local PERIOD, K, LIMIT, SPAN, NEVEROVER, MOST = read('>I7I7I7I7I7I7', p, 3)
  local HEADER, WORDS = sub(p, 3, 16), '>' .. rep('I7', K + 2)
  --@end
  local twin = {header = HEADER, limit = LIMIT}

  function twin.intact(v)
    --@intact
    return #v == 28 + 7 * K and sub(v, 1, 14) == HEADER or #v > 28 and iscounts(v)
    --@end
  end

  -- c are the counts from the newest sub-window on, which begins at start.
  function twin.admits(v, n)
    --@admits
    local current = now - now % SPAN
    local start, c, value, life, state = current
    if v and sub(v, 1, 14) == HEADER then
      c = {read(WORDS, v, 15)}
      start = table.remove(c, 1)
      c[K + 2] = nil -- which some libraries add
    else
      c = {}
      for i = 1, K + 1 do c[i] = 0 end
    end
    if v and sub(v, 1, 14) ~= HEADER then -- each goes where its events may have happened at the latest
      local period, k, newest = read('>I7I7I7', v, 1)
      local span, latest = div(period + k - 1, k), max(now, newest)
      start = latest - latest % SPAN
      for i = 0, k do
        local last = min(newest - i * span + span - 1, latest)
        local back = (start - (last - last % SPAN)) / SPAN
        if back <= K then c[back + 1] = min(c[back + 1] + read('>I7', v, 22 + 7 * i), 9007199254740991) end
      end
      state, life = pack(WORDS, start, unpack(c)), countlife(start, c, SPAN)
      value = HEADER .. state
    end
    local passed = div(max(current - start, 0), SPAN)
    if passed > 0 then
      for i = K + 1, 1, -1 do c[i] = c[i - passed] or 0 end
    end
    start = max(start, current)

    local room, old = LIMIT - n, c[K + 1]
    for i = 1, K do room = room - c[i] end
    local ok = old <= room
    if not ok and room >= 0 and NEVEROVER == 0 then
      ok = atmost(old, SPAN - max(now - start, 0), room, SPAN)
    end
    --@end
    return ok, value, life, state, start, c
  end

  function twin.charge(_, n, _, start, c)
    --@charge
    local lasts = c[1] > 0 and 0 or start + (K + 1) * SPAN - now
    c[1] = c[1] + n
    local words = pack(WORDS, start, unpack(c))
    return HEADER .. words, lasts, words
    --@end
  end

  function twin.refuse(_, n, _, start, c)
    --@refuse
    c[1] = max(c[1], min(c[1] + min(n, MOST), MOST))
    local words = pack(WORDS, start, unpack(c))
    return HEADER .. words, countlife(start, c, SPAN), words
    --@end
  end

  function twin.giveback(v, at, n)
    if sub(v, 1, 14) ~= HEADER then return nil end
    local c = {read(WORDS, v, 15)}
    local start = table.remove(c, 1)
    c[K + 2] = nil
    local back = (start - (at - at % SPAN)) / SPAN
    if back >= 0 and back <= K then c[back + 1] = max(c[back + 1] - n, 0) end
    return HEADER .. pack(WORDS, start, unpack(c)), countlife(start, c, SPAN)
  end

  return twin
end
