-- What settlements and states of other parameters need of a token bucket. Its state under any
-- parameters is a record without the tag.
do
  local step = steps[1] or {} -- which has no more if no question uses it, but a record is of it
  steps[1] = step

  -- muldiv returns x*y/z and the remainder, for x <= z <= 2^52, y < 2^53: by long multiplication.
  local function muldiv(x, y, z)
    local product, rest, bit = 0, 0, 4503599627370496
    while bit >= 1 do
      product, rest = 2 * product, 2 * rest
      if rest >= z then product, rest = product + 1, rest - z end
      if y >= bit then
        y, rest = y - bit, rest + x
        if rest >= z then product, rest = product + 1, rest - z end
      end
      bit = bit / 2
    end
    return product, rest
  end

  -- bucket mirrors newTokenBucket, and used: n, p, q, r, the time in which an empty one fills, and t, f.
  local function bucket(v)
    local limit, period, burst, t, f = read('>I7I7I7I7I7', v, 1)
    local a, b = limit, period
    while b ~= 0 do
      local remainder = a % b -- in one assignment, miniredis would use the new a
      a = b
      b = remainder
    end
    local n, p = limit / a, period / a
    local q = div(p, n)
    local r = p - q * n
    local full, part = muldiv(r, burst, n)
    if part > 0 then full = full + 1 end
    t = t - now
    if t < 0 then t, f = 0, 0 end
    return n, p, q, r, burst * q + full, t, f
  end

  step.alike = 14

  -- max mirrors tokenBucket.Max.
  function step.max(place) return (read('>I7', numbers, place + 21)) end

  -- giveback mirrors tokenBucket.GiveBack.
  function step.giveback(v, from, at, n, place, number)
    local _, _, _, _, most = step.admits(v, from, 1, place, number)
    local burst, q, r, per = read('>I7I7I7I7', numbers, place + 21)
    local t, f = read('>I7I7', v, from + 28)
    n = math.min(n, burst)
    local backt, backf = n * q + div(n * r, per) - math.max(now - at, 0), n * r % per
    if backt >= 0 then
      t, f = t - backt, f - backf
      if f < 0 then t, f = t - 1, f + per end
      if t < 0 then t, f = 0, 0 end
    end
    local state = pack('>I7I7I7', most, t, f)
    local stored = from > 1
    if not stored then return sub(v, from, from + 20) .. state end
    return state, from + 21, from + 41
  end

  -- intact reports whether v is a state at all.
  function step.intact(v)
    if #v ~= 35 then return false end
    local limit, period, burst = read('>I7I7I7', v, 1)
    return limit >= 1 and limit <= period and period <= 4503599627370496 and burst >= 1
      and burst * (period / limit) <= 9007199254740992
  end

  -- count mirrors tokenBucket.Count.
  function step.count(v, units, till)
    local n, p, q, r, full, t, f = bucket(v)
    local most = math.max(full, till - now)
    if t < most then
      local sum, sumf = most, 0
      if units <= muldiv(n, most, p) then
        local more, moref = muldiv(r, units, n)
        more, moref = t + units * q + more, f + moref
        if moref >= n then more, moref = more + 1, moref - n end
        if more < most then sum, sumf = more, moref end
      end
      t, f = sum, sumf
    end
    return sub(v, 1, 21) .. pack('>I7I7', now + t, f)
  end

  -- lasts mirrors tokenBucket.FreshAt and Window, and Variant.shows.
  function step.lasts(v)
    local t, f = read('>I7I7', v, 22)
    local n, p, _, _, full, used, part = bucket(v)
    local units, remainder = muldiv(n, used, p)
    return f > 0 and t + 1 or t, full, remainder + part >= p and units + 1 or units
  end

  -- adopt mirrors tokenBucket.Adopt.
  function step.adopt(v, place)
    local n, p, _, _, _, t, f = bucket(v)
    local units, part = muldiv(n, t, p)
    if part + f > 0 then units = units + 1 end
    if part + f > p then units = units + 1 end
    return step.count(sub(numbers, place + 7, place + 27) .. pack('>I7I7', 0, 0), units, (step.lasts(v)))
  end

  -- redate mirrors tokenBucket.Redate.
  function step.redate(v, _, longest)
    local n, _, q, r, full, used = bucket(v)
    if used <= full + math.max(full, longest) then return v end
    local burst = read('>I7', v, 15)
    local more, part = muldiv(r, burst, n)
    return sub(v, 1, 21) .. pack('>I7I7', now + burst * q + more, part)
  end

  -- larger mirrors larger in variant.go.
  function step.larger(v, place)
    return read('>I7', numbers, place + 21) > read('>I7', v, 15) and sub(numbers, place + 7, place + 27) .. sub(v, 22) or v
  end
end
