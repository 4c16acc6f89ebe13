-- Mirrors tokenbucket.go. A record is limit, period, burst, then T, f: the burst is the largest that
-- it is kept for. The numbers are limit, period, burst, then what New computes of them: q, r, n, and
-- the time in which an empty bucket fills, with the fraction.
if usesBuckets > 0 then
  -- The numbers of the policy that was asked last: questions mostly follow others like them.
  local last, tag, limit, period, burst, q, r, per, full, fullf

  -- admits mirrors tokenBucket.Admits. It returns t, f: in what time the bucket will be full after the
  -- charge; the burst that the record is kept for, and whether it has that.
  local function admits(v, from, n, place)
    if place ~= last then
      last, tag, limit, period, burst, q, r, per, full, fullf = place, read('>I7I7I7I7I7I7I7I7I7', numbers, place - 7)
    end
    local upto, t, f, most, same = from + 41, 0, 0, burst
    if v then
      if #v < upto then return end
      local oftag, oflimit, ofperiod, kept, at, part = read('>I7I7I7I7I7I7', v, from)
      if oftag ~= tag or oflimit ~= limit or ofperiod ~= period then return end
      if kept > burst and (from == 1 or at > now or at == now and part > 0) then most = kept end
      same = kept == most
      if at >= now then
        t, f = at - now, part
        if t > 2 * full and from > 1 then return end
      end
    end
    local fraction = n * r
    f = f + fraction % per
    t = t + n * q + (fraction - fraction % per) / per
    if f >= per then
      t = t + 1
      f = f - per
    end
    return t < full or t == full and f <= fullf, upto, t, f, most, same
  end

  -- charge mirrors tokenBucket.Charge.
  local function charge(_, from, _, place, _, t, f, most, same)
    local state = pack('>I7I7', now + t, f)
    if same and from > 1 then return state, 28, now + t + 1, state end
    return sub(numbers, place - 7, place + 13) .. pack('>I7', most) .. state, nil, now + t + 1, state
  end

  local function reply(v, from) return v and sub(v, from + 28, from + 41) or pack('>I7I7', 0, 0) end

  steps[1] = {admits = admits, charge = charge, reply = reply}
end
