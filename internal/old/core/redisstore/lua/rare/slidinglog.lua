-- What settlements and states of other parameters need of a log.
if usesLogs > 0 then
  local step = steps[4]

  step.alike = 7

  -- max mirrors slidingLog.Max.
  function step.max(place) return (read('>I7', numbers, place + 14)) end

  -- report mirrors slidingLog.Report: so many of the newest stay as it is kept for.
  function step.report(v, from, n, place, number)
    local _, _, most, first, count, newest, size = step.admits(v, from, 1, place, number)
    return step.refuse(v, from, n, place, number, most, first, count, newest, size, 0, 1)
  end

  -- giveback mirrors slidingLog.GiveBack.
  function step.giveback(v, from, at, n, place, number)
    local period = read('>I7', numbers, place + 7)
    local _, _, most, first, count, newest, size = step.admits(v, from, 1, place, number)
    if math.max(now, newest) - at >= period or count == 0 then -- only most may change
      n, first, count = 0, read('>I2I2', v, from + 23)
    end
    local over = read('>I2', v, from + 25) == count and read('>I7', v, from + 29) or 0 -- or they have expired
    local gone = math.min(n, over)
    n = math.min(n - gone, count)
    return push(v, from, number, period, most, (first + n) % size, count - n, size, 0, newest, over - gone)
  end

  -- intact reports whether v is a state at all.
  function step.intact(v)
    if #v <= HEAD or not isperiod(v) then return false end
    local most, first, count, size = read('>I2I2I2I2', v, 22)
    return first < size and count <= size and most <= MAXLOG and #v == HEAD + 7 * size
  end

  -- adopt mirrors slidingLog.Adopt.
  function step.adopt(v, place)
    local period, limit = read('>I7I7', numbers, place + 7)
    local _, newest, _, _, first, count, size = read(HEADER, v, 1)
    local n = math.min(count, limit)
    first = (first + count - n) % size
    local straight = math.min(n, size - first) -- the rest wraps around
    local entries = sub(v, HEAD + 1 + 7 * first, HEAD + 7 * (first + straight)) .. sub(v, HEAD + 1, HEAD + 7 * (n - straight))
    size = math.max(n, math.min(limit, 4))
    entries = entries .. string.rep('\0', 7 * (size - n))
    return pack(HEADER, period, newest, (read('>I7', entries, 1)), limit, 0, n, size) .. string.rep('\0', 7) .. entries
  end

  -- larger mirrors larger in variant.go.
  function step.larger(v, place)
    local most, limit = read('>I2', v, 22), read('>I7', numbers, place + 14)
    return sub(v, 1, 21) .. pack('>I2', math.max(most, limit)) .. sub(v, 24)
  end

  -- redate mirrors slidingLog.Redate.
  function step.redate(v, place)
    local period, newest, _, most, _, count = read(HEADER, v, 1)
    if newest - now <= period then return v end
    count = math.max(count, (read('>I7', numbers, place + 14)))
    return pack(HEADER, period, now, now, most, 0, count, count) .. string.rep('\0', 7) .. string.rep(pack('>I7', now), count)
  end

  -- count mirrors slidingLog.Count: the newest entries stay, of more than the largest limit.
  function step.count(v, n)
    local period, newest, _, most, first, count, size = read(HEADER, v, 1)
    local latest, over = math.max(now, newest), read('>I7', v, 30)
    if count > 0 and entry(v, 1, nil, first, size, 0) <= latest - period then
      local dead = split(v, 1, nil, first, count, size, latest - period)
      first, count, over = (first + dead) % size, count - dead, 0
    end
    local units = math.min(n, most)
    local gone = math.max(count + units - math.max(most, count), 0)
    over = math.min(over + n - units + gone, MAXINT)
    return (push(v, 1, nil, period, most, (first + gone) % size, count - gone, size, units, latest, over))
  end

  -- lasts mirrors slidingLog.FreshAt and Window, and Variant.shows.
  function step.lasts(v)
    local period, newest, _, _, first, count, size = read(HEADER, v, 1)
    return count > 0 and entry(v, 1, nil, first, size, count - 1) + period or newest, period, period
  end
end
