-- What settlements and states of other parameters need of a sliding window.
do
  local step = steps[3] or {} -- which has no more if no question uses it, but a record is of it
  steps[3] = step

  step.alike = 14

  -- max mirrors slidingWindow.Max.
  function step.max(place) return (read('>I7', numbers, place + 21)) end

  -- report mirrors slidingWindow.Report and count.
  function step.report(v, from, n, place, number)
    local _, _, start, count, passed, sum = step.admits(v, from, 1, place, number)
    return step.charge(v, from, math.max(math.min(n, MAXINT - sum), 0), place, number, start, count, passed)
  end

  -- giveback mirrors slidingWindow.GiveBack.
  function step.giveback(v, from, at, n, place)
    local k, _, span = read('>I7I7I7', numbers, place + 14)
    local start = read('>I7', v, from + 21)
    local back = (start - (at - at % span)) / span
    if back < 0 or back > k then return sub(v, from, from + 34 + 7 * k) end
    local where = from + 28 + 7 * back
    local count = pack('>I7', math.max(read('>I7', v, where) - n, 0))
    local stored = from > 1
    if not stored then return sub(v, from, where - 1) .. count .. sub(v, where + 7, from + 34 + 7 * k) end
    return count, where, where + 6
  end

  -- intact reports whether v is a state at all.
  function step.intact(v)
    local k = #v > 28 and isperiod(v) and read('>I7', v, 8) or 0
    return k >= 1 and k <= 1000 and #v == 28 + 7 * k
  end

  -- adopt mirrors slidingWindow.Adopt.
  function step.adopt(v, place)
    local ofperiod, ofk, newest = read('>I7I7I7', v, 1)
    local ofspan, k, _, span = div(ofperiod + ofk - 1, ofk), read('>I7I7I7', numbers, place + 14)
    local latest = math.max(now, newest)
    local start, c = latest - latest % span, {}
    for i = 1, k + 1 do c[i] = 0 end
    for i = 0, ofk do
      local last = math.min(newest - i * ofspan + ofspan - 1, latest)
      local back = (start - (last - last % span)) / span
      if back <= k then c[back + 1] = math.min(c[back + 1] + read('>I7', v, 22 + 7 * i), 9007199254740991) end
    end
    return sub(numbers, place + 7, place + 20) .. pack('>' .. string.rep('I7', k + 2), start, unpack(c))
  end

  -- redate mirrors slidingWindow.Redate.
  function step.redate(v, place)
    local period, k, start = read('>I7I7I7', v, 1)
    local span, sum = div(period + k - 1, k), 0
    if start - now <= (k + 1) * span then return v end
    for i = 0, k do sum = sum + read('>I7', v, 22 + 7 * i) end
    sum = math.min(math.max(sum, (read('>I7', numbers, place + 21))), 9007199254740991)
    return sub(v, 1, 14) .. pack('>I7I7', now - now % span, sum) .. string.rep('\0', 7 * k)
  end

  -- count mirrors slidingWindow.Count.
  function step.count(v, n)
    local period, k, start = read('>I7I7I7', v, 1)
    local span, counts = div(period + k - 1, k), sub(v, 22)
    local current = now - now % span
    local passed = math.min(math.max(div(current - start, span), 0), k + 1)
    counts = string.rep('\0', 7 * passed) .. sub(counts, 1, 7 * (k + 1 - passed))
    local first, room = read('>I7', counts, 1), MAXINT
    for i = 0, k - 1 do room = room - read('>I7', counts, 1 + 7 * i) end
    first = first + math.max(math.min(n, room), 0)
    return sub(v, 1, 14) .. pack('>I7I7', math.max(start, current), first) .. sub(counts, 8)
  end

  -- lasts mirrors slidingWindow.FreshAt and Window, and Variant.shows.
  function step.lasts(v)
    local period, k, start = read('>I7I7I7', v, 1)
    local span, fresh = div(period + k - 1, k), start
    for i = 0, k do
      if read('>I7', v, 22 + 7 * i) > 0 then
        fresh = start + (k + 1 - i) * span
        break
      end
    end
    return fresh, (k + 1) * span, (k + 1) * span
  end
end
