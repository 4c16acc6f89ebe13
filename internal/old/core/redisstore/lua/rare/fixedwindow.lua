-- What settlements and states of other parameters need of a fixed window.
do
  local step = steps[2] or {} -- which has no more if no question uses it, but a record is of it
  steps[2] = step

  -- window returns the period of a state, its start and count, and its beginning.
  local function window(v)
    local period, start, count = read('>I7I7I7', v, 1)
    if period > 2^52 then period = period - 2^52 end
    return period, start, count, sub(v, 1, 7)
  end

  -- begin mirrors fixedWindow.begin.
  local function begin(of, at)
    local period = read('>I7', of, 1)
    return period > 2^52 and at or at - at % period
  end

  step.alike = 7

  -- max mirrors fixedWindow.Max.
  function step.max(place) return (read('>I7', numbers, place + 14)) end

  -- report mirrors fixedWindow.Report.
  function step.report(v, from, n, place, number)
    local _, _, start, count = step.admits(v, from, 1, place, number)
    return step.charge(v, from, math.min(n, MAXINT - count), place, number, start, count)
  end

  -- giveback mirrors fixedWindow.GiveBack.
  function step.giveback(v, from, at, n)
    local period, start, count = window(sub(v, from + 7, from + 27))
    if start <= at and at < start + period then count = math.max(count - n, 0) end
    local state = pack('>I7I7', start, count)
    local stored = from > 1
    if not stored then return sub(v, from, from + 13) .. state end
    return state, from + 14, from + 27
  end

  -- intact reports whether v is a state at all.
  function step.intact(v)
    local period = #v == 21 and window(v) or 0
    return period >= 1 and period <= 2^52
  end

  -- adopt mirrors fixedWindow.Adopt.
  function step.adopt(v, place)
    local period, start, count = window(v)
    local last, of = math.min(start + period - 1, math.max(now, start)), sub(numbers, place + 7, place + 13)
    return of .. pack('>I7I7', begin(of, last), count)
  end

  -- redate mirrors fixedWindow.Redate.
  function step.redate(v, place)
    local period, start, count, of = window(v)
    if start - now <= period then return v end
    return of .. pack('>I7I7', begin(of, now), math.max(count, (read('>I7', numbers, place + 14))))
  end

  -- lasts mirrors fixedWindow.FreshAt and Window, and Variant.shows.
  function step.lasts(v)
    local period, start, count = window(v)
    return count > 0 and start + period or start, period, period
  end

  -- count mirrors fixedWindow.Count.
  function step.count(v, n)
    local _, start, count, of = window(v)
    if step.lasts(v) <= now then start, count = begin(of, now), 0 end
    return of .. pack('>I7I7', start, count + math.min(n, MAXINT - count))
  end
end
