-- Mirrors tokenbucket.go. A record is limit, period, burst, debt, then T, f: burst and debt are the largest
-- that it is kept for. The numbers are limit, period, burst, then what New computes of them: q, r, n, and
-- the time in which an empty bucket fills, with the fraction; then the debt, and the time in which a
-- bucket fills that is in debt by all of it, with the fraction.
if usesBuckets > 0 then
  -- The policy that was asked, what its records begin with, and its numbers: questions mostly follow
  -- others like them.
  local asked, begin, burst, q, r, per, full, fullf, debt, reach

  -- admits mirrors tokenBucket.Admits. It returns t, f: in what time the bucket will be full after the
  -- charge; the burst and the debt that the record is kept for, and whether it has these.
  local function admits(v, from, n, place)
    if place ~= asked then
      asked, begin = place, numbers:sub(place, place + 20)
      burst, q, r, per, full, fullf, debt, reach = read('>I7I7I7I7I7I7I7I7', numbers, place + 21)
    end
    local stored, upto, t, f, most, owed, same = from > 1, from + 48, 0, 0, burst, debt
    if v then
      if #v < upto or v:sub(from, from + 20) ~= begin then return end
      local kept, of, at, part = read('>I7I7I7I7', v, from + 21)
      same = kept == burst and of == debt
      if not same and (kept + of > burst + debt or kept + of == burst + debt and kept > burst)
        and (not stored or at > now or at == now and part > 0) then most, owed, same = kept, of, true end
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
