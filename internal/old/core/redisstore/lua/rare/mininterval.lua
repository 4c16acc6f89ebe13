-- What settlements and states of other parameters need of a minimum interval. It has no max, as it
-- counts calls.
do
  local step = steps[5] or {} -- which has no more if no question uses it, but a record is of it
  steps[5] = step

  step.alike = 7

  -- report mirrors minInterval.Report.
  function step.report(v, from, n, place, number)
    local _, _, newest, period = step.admits(v, from, 1, place, number)
    local last = v and read('>I7', v, from + 14) or 0
    if last ~= 0 and last >= now then newest = math.max(newest, last + 1) end
    return step.charge(v, from, n, place, number, newest, period)
  end

  -- giveback mirrors minInterval.GiveBack.
  function step.giveback(v, from, at)
    local last, newest = read('>I7I7', v, from + 14)
    if last == at then last = 0 end
    local state = pack('>I7I7', last, newest)
    local stored = from > 1
    if not stored then return sub(v, from, from + 13) .. state end
    return state, from + 14, from + 27
  end

  -- intact reports whether v is a state at all.
  function step.intact(v) return #v == 21 and isperiod(v) end

  -- adopt mirrors minInterval.Adopt.
  function step.adopt(v, place) return sub(numbers, place + 7, place + 13) .. sub(v, 8) end

  -- redate mirrors minInterval.Redate.
  function step.redate(v)
    local period, _, newest = read('>I7I7I7', v, 1)
    return newest - now > period and sub(v, 1, 7) .. pack('>I7I7', now, now) or v
  end

  -- count mirrors minInterval.Count.
  function step.count(v)
    local newest = math.max(now, (read('>I7', v, 15)))
    return sub(v, 1, 7) .. pack('>I7I7', newest, newest)
  end

  -- lasts mirrors minInterval.FreshAt and Window, and Variant.shows.
  function step.lasts(v)
    local period, last, newest = read('>I7I7I7', v, 1)
    return last > 0 and last + period or newest, period, period
  end
end
