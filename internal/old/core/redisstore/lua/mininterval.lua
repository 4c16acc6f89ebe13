-- Mirrors mininterval.go. A record is period, then last, newest. The number is period.
if usesIntervals > 0 then
  -- admits mirrors minInterval.Admits. It returns newest, and the period.
  local function admits(v, from, _, place)
    local tag, period = read('>I7I7', numbers, place)
    local stored, upto, before, newest = from > 1, from + 27, 0, 0
    if v then
      if #v < upto then return end
      local oftag, of
      oftag, of, before, newest = read('>I7I7I7I7', v, from)
      if oftag ~= tag or of ~= period or stored and newest - now > period then return end
    end
    return before == 0 or before + period <= now, upto, newest, period
  end

  -- charge mirrors minInterval.Charge.
  local function charge(_, _, _, place, _, newest, period)
    newest = math.max(now, newest)
    local state = pack('>I7I7', newest, newest)
    return numbers:sub(place, place + 13) .. state, nil, nil, newest + period, state
  end

  local function reply(v, from) return v and v:sub(from + 14, from + 27) or pack('>I7I7', 0, 0) end

  steps[5] = {admits = admits, charge = charge, reply = reply}
end
