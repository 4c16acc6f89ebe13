-- Mirrors fixedwindow.go. A record is period, then start, count. The numbers are period, limit. If
-- windows begin with the first unit, 2^52 is added to the period.
if usesFixed > 0 then
  -- The policy that was asked, and its numbers.
  local asked, tag, parameter, period, limit

  -- admits mirrors fixedWindow.Admits. It returns the start and the count of the window.
  local function admits(v, from, n, place)
    if place ~= asked then
      asked, tag, parameter, limit = place, read('>I7I7I7', numbers, place)
      period = parameter > 2^52 and parameter - 2^52 or parameter
    end
    local stored, upto, start, count = from > 1, from + 27, 0, 0
    if v then
      if #v < upto then return end
      local oftag, of
      oftag, of, start, count = read('>I7I7I7I7', v, from)
      if oftag ~= tag or of ~= parameter or stored and start - now > period then return end
    end
    if start <= now and (count == 0 or start + period <= now) then
      start = parameter == period and now - now % period or now
      count = 0
    end
    return n <= limit - count, upto, start, count
  end

  -- charge mirrors fixedWindow.Charge.
  local function charge(_, from, n, place, _, start, count)
    local state = pack('>I7I7', start, count + n)
    local stored = from > 1
    if stored and count > 0 then return state, from + 14, from + 27, nil, state end
    local period = read('>I7', numbers, place + 7) % 2^52
    return numbers:sub(place, place + 13) .. state, nil, nil, start + period, state
  end

  -- refuse mirrors fixedWindow.Refuse.
  local function refuse(v, from, n, place, number, start, count)
    local limit = read('>I7', numbers, place + 14)
    return charge(v, from, math.max(math.min(n, limit - count), 0), place, number, start, count)
  end

  local function reply(v, from) return v and v:sub(from + 14, from + 27) or pack('>I7I7', 0, 0) end

  steps[2] = {admits = admits, charge = charge, refuse = refuse, reply = reply}
end
