-- Mirrors tokenbucket.go. A record is limit, period, burst, debt, then T, f: burst and debt are the largest
-- that it is kept for. The numbers are limit, period, burst, debt, then what New computes of them: q, r, n, the
-- time in which an empty bucket fills, and that in which one fills that is in debt by all of its debt,
-- each with the fraction.
if usesBuckets > 0 then
  -- The policy that was asked, what its records begin with, and its numbers: questions mostly follow
  -- others like them.
  local asked, begin, burst, q, r, per, full, fullf, debt, reach

  -- admits mirrors tokenBucket.Admits. It returns t, f: in what time the bucket will be full after the
  -- charge; the burst and the debt that the record is kept for, and whether it has these.
  local function admits(v, from, n, place)
    if place ~= asked then
      asked, begin = place, numbers:sub(place, place + 34)
      burst, debt, q, r, per, full, fullf, reach = read('>I7I7I7I7I7I7I7I7', numbers, place + 21)
    end
    local stored, upto, t, f, most, owed, same = from > 1, from + 48, 0, 0, burst, debt
    if v then
      if #v < upto then return end
      same = v:sub(from, from + 34) == begin
      local kept, of, at, part
      if same then
        at, part = read('>I7I7', v, from + 35)
      else
        if v:sub(from, from + 20) ~= begin:sub(1, 21) then return end
        kept, of, at, part = read('>I7I7I7I7', v, from + 21)
        local more = kept + of - burst - debt
        if (more > 0 or more == 0 and kept > burst) and (not stored or at > now or at == now and part > 0) then
          most, owed, same = kept, of, true
        end
      end
      if at >= now then
        t, f = at - now, part
        if t > full + reach and stored then return end
      end
    end
    local fraction = n * r
    f = f + fraction % per
    t = t + n * q + (fraction - fraction % per) / per
    if f >= per then
      t = t + 1
      f = f - per
    end
    return t < full or t == full and f <= fullf, upto, t, f, most, owed, same
  end

  -- charge mirrors tokenBucket.Charge.
  local function charge(_, from, _, place, _, t, f, most, owed, same)
    local state = pack('>I7I7', now + t, f)
    local stored = from > 1
    if stored and same then return state, from + 35, from + 48, now + t + 1, state end
    return numbers:sub(place, place + 20) .. pack('>I7I7', most, owed) .. state, nil, nil, now + t + 1, state
  end

  local function reply(v, from) return v and v:sub(from + 35, from + 48) or pack('>I7I7', 0, 0) end

  steps[1] = {admits = admits, charge = charge, reply = reply}
end
