-- Mirrors fixedwindow.go. A record is period, then start, count. The numbers are period, limit. If
-- windows begin with the first unit, 2^52 is added to the period.
if usesFixed > 0 then
  -- The numbers of the policy that was asked last.
  local last, tag, parameter, period, limit

  -- admits mirrors fixedWindow.Admits. It returns the start and the count of the window.
  local function admits(v, from, n, place)
    if place ~= last then
      last, tag, parameter, limit = place, read('>I7I7I7', numbers, place - 7)
      period = parameter > 2^52 and parameter - 2^52 or parameter
    end
    local upto, start, count = from + 27, 0, 0
    if v then
      if #v < upto then return end
      local oftag, of
      oftag, of, start, count = read('>I7I7I7I7', v, from)
      if oftag ~= tag or of ~= parameter or start - now > period and from > 1 then return end
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
    if count > 0 and from > 1 then return state, 14, nil, state end
    local period = read('>I7', numbers, place) % 2^52
    return sub(numbers, place - 7, place + 6) .. state, nil, start + period, state
  end

  -- refuse mirrors fixedWindow.Refuse.
  local function refuse(v, from, n, place, number, start, count)
    local limit = read('>I7', numbers, place + 7)
    return charge(v, from, math.max(math.min(n, limit - count), 0), place, number, start, count)
  end

  local function reply(v, from) return v and sub(v, from + 14, from + 27) or pack('>I7I7', 0, 0) end

  steps[2] = {admits = admits, charge = charge, refuse = refuse, reply = reply}
end
