-- Mirrors slidingwindow.go. A record is period, k, then start, c0 ... ck. The numbers are period, k,
-- limit, span, neverover, most: span is the length of a sub-window, and most is manyDenied or more.
if usesSliding > 0 then
  -- The policy that was asked, its numbers, and the format of its records.
  local asked, tag, period, k, limit, span, neverover, formatted, format

  -- atmost reports a*b <= c*d.
  local function atmost(a, b, c, d)
    local x, y = a * b, c * d
    if x < 9007199254740992 and y < 9007199254740992 then return x <= y end

    -- product returns a*b exactly, in digits of 2^26 after the first.
    local function product(a, b)
      local B = 67108864
      local a0, b0 = a % B, b % B
      local a1, b1 = (a - a0) / B, (b - b0) / B
      local low, mid1, mid2 = a0 * b0, a1 * b0, a0 * b1
      local digit0 = low % B
      local mid = mid1 % B + mid2 % B + (low - digit0) / B
      local digit1 = mid % B
      return a1 * b1 + (mid1 - mid1 % B) / B + (mid2 - mid2 % B) / B + (mid - digit1) / B, digit1, digit0
    end
    local x2, x1, x0 = product(a, b)
    local y2, y1, y0 = product(c, d)
    if x2 ~= y2 then return x2 < y2 end
    if x1 ~= y1 then return x1 < y1 end
    return x0 <= y0
  end

  -- admits mirrors slidingWindow.Admits. It returns the start of the present sub-window and its
  -- count, how many have passed since the newest of the record, and how many units count in full.
  local function admits(v, from, n, place)
    if place ~= asked then
      asked, tag, period, k, limit, span, neverover = place, read('>I7I7I7I7I7I7', numbers, place)
      if k ~= formatted then formatted, format = k, '>' .. string.rep('I7', k + 5) end
    end
    local stored, upto, start = from > 1, from + 34 + 7 * k, now - now % span
    local room, old, count, passed = limit - n, 0, 0, k + 1
    if v then
      if #v < upto then return end
      local s = {read(format, v, from)} -- the counts are from the fifth on
      local newest = s[4]
      if s[1] ~= tag or s[2] ~= period or s[3] ~= k or stored and newest - now > (k + 1) * span then return end
      passed = 0
      if newest >= start then
        start, count = newest, s[5]
      else
        passed = math.min((start - newest - (start - newest) % span) / span, k + 1)
      end
      for i = 5, k + 4 - passed do room = room - s[i] end
      if passed <= k then old = s[k + 5 - passed] end
    end
    local fits = old <= room
    if not fits and room >= 0 and neverover == 0 then -- as slidingWindow.fits
      fits = atmost(old, span - math.max(now - start, 0), room, span)
    end
    return fits, upto, start, count, passed, limit - n - room
  end

  -- reply is the record that was found, to which step.ReadTwin adds what was charged.
  local function reply(v, from, _, place)
    local upto = 34 + 7 * read('>I7', numbers, place + 14)
    return v and sub(v, from, from + upto) or string.rep('\0', upto + 1)
  end

  -- charge mirrors slidingWindow.Charge and roll.
  local function charge(v, from, n, place, number, start, count, passed)
    local k, span, _ = k, span, nil
    if place ~= asked then k, _, span = read('>I7I7I7', numbers, place + 14) end
    local state = pack('>I7I7', start, count + n)
    local found = v and sub(v, from, from + 34 + 7 * k) or reply(v, from, n, place)
    local stored = from > 1
    if stored and count > 0 then return state, from + 21, from + 34, nil, found end
    local counts = string.rep('\0', 7 * (passed - 1)) .. sub(v or '', from + (passed > 0 and 28 or 35), from + 34 + 7 * k - 7 * passed)
    return sub(numbers, place, place + 20) .. state .. counts, nil, nil, start + (k + 1) * span, found
  end

  -- refuse mirrors slidingWindow.Refuse and count.
  local function refuse(v, from, n, place, number, start, count, passed, sum)
    local most = math.min(read('>I7', numbers, place + 42), 9007199254740991 - sum + count)
    return charge(v, from, math.max(math.min(n, most - count), 0), place, number, start, count, passed)
  end

  steps[3] = {admits = admits, charge = charge, refuse = refuse, reply = reply}
end
