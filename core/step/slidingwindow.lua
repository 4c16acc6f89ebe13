-- The twin of slidingwindow.go. The numbers of a policy are period, k, limit, span, neverover,
-- most. A value is period, k, then start, c0 ... ck.

--@helpers
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

--@admits
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

--@charge
if b > 0 then
  life = 0
  patch = pack('>I7I7', a, b + n)
end
if others or not patch then
  new = pushed(own, o, place, a, b + n, c)
  life = life or a + d - now
end
if own then state = #own == 35 + 7 * k and own or sub(own, o, o + 34 + 7 * k) end

--@refuse
local most = read('>I7', numbers, place + 35)
new = pushed(own, o, place, a, max(b, min(b + min(n, most), most)), c)
life = a + d - now
if own then state = #own == 35 + 7 * k and own or sub(own, o, o + 34 + 7 * k) end

--@state
if own then state = #own == 35 + 7 * k and own or sub(own, o, o + 34 + 7 * k) end

--@rare
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
