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

  -- bucket mirrors newTokenBucket, and used: n, p, q, r, the time in which an empty one fills, the time in which
  -- one fills that is in debt by all of its debt, and t, f.
  local function bucket(v)
    local limit, period, burst, debt, t, f = read('>I7I7I7I7I7I7', v, 1)
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
    local reach, rest = muldiv(r, burst + debt, n)
    if rest > 0 then reach = reach + 1 end
    t = t - now
    if t < 0 then t, f = 0, 0 end
    return n, p, q, r, burst * q + full, (burst + debt) * q + reach, t, f
  end

  -- fill mirrors tokenBucket.count: what t, f become if units are added, but to most, part at most.
  local function fill(t, f, units, n, p, q, r, most, part)
    if t > most or t == most and f >= part then return t, f end
    local fit, rest = muldiv(n, most, p)
    if rest + part >= p then fit = fit + 1 end
    if units > fit then return most, part end
    local more, moref = muldiv(r, units, n)
    more, moref = t + units * q + more, f + moref
    if moref >= n then more, moref = more + 1, moref - n end
    if more > most or more == most and moref >= part then return most, part end
    return more, moref
  end

  -- parameters are those of the policy, as a state begins with them.
  local function parameters(place) return sub(numbers, place + 7, place + 34) end

  -- report mirrors tokenBucket.Report.
  function step.report(v, from, n, place, number)
    local _, _, _, _, most, owed, same = step.admits(v, from, 1, place, number)
    local q, r, per = read('>I7I7I7', numbers, place + 35)
    local reach, part = read('>I7I7', numbers, place + 70)
    local t, f = 0, 0
    if v then t, f = read('>I7I7', v, from + 35) end
    if t < now then t, f = now, 0 end
    t, f = fill(t - now, f, n, per, q * per + r, q, r, reach, part)
    return step.charge(v, from, n, place, number, t, f, most, owed, same)
  end

  step.alike = 14

  -- max mirrors tokenBucket.Max.
  function step.max(place) return (read('>I7', numbers, place + 21)) end

  -- giveback mirrors tokenBucket.GiveBack.
  function step.giveback(v, from, at, n, place, number)
    local _, _, _, _, most, owed = step.admits(v, from, 1, place, number)
    local burst, _, q, r, per = read('>I7I7I7I7I7', numbers, place + 21)
    local t, f = read('>I7I7', v, from + 35)
    n = math.min(n, burst)
    local backt, backf = n * q + div(n * r, per) - math.max(now - at, 0), n * r % per
    if backt >= 0 then
      t, f = t - backt, f - backf
      if f < 0 then t, f = t - 1, f + per end
      if t < 0 then t, f = 0, 0 end
    end
    local state = pack('>I7I7I7I7', most, owed, t, f)
    local stored = from > 1
    if not stored then return sub(v, from, from + 20) .. state end
    return state, from + 21, from + 48
  end

  -- intact reports whether v is a state at all.
  function step.intact(v)
    if #v ~= 42 then return false end
    local limit, period, burst, debt = read('>I7I7I7I7', v, 1)
    return limit >= 1 and limit <= period and period <= 4503599627370496 and burst >= 1
      and (burst + debt) * (period / limit) <= 9007199254740992
  end

  -- count mirrors tokenBucket.Count.
  function step.count(v, units, till)
    local n, p, q, r, full, _, t, f = bucket(v)
    t, f = fill(t, f, units, n, p, q, r, math.max(full, till - now), 0)
    return sub(v, 1, 28) .. pack('>I7I7', now + t, f)
  end

  -- lasts mirrors tokenBucket.FreshAt and Window, and Variant.shows.
  function step.lasts(v)
    local t, f = read('>I7I7', v, 29)
    local n, p, _, _, full, reach, used, part = bucket(v)
    local units, remainder = muldiv(n, used, p)
    return f > 0 and t + 1 or t, full, remainder + part >= p and units + 1 or units, reach
  end

  -- adopt mirrors tokenBucket.Adopt.
  function step.adopt(v, place)
    local n, p, _, _, _, _, t, f = bucket(v)
    local units, part = muldiv(n, t, p)
    if part + f > 0 then units = units + 1 end
    if part + f > p then units = units + 1 end
    return step.count(parameters(place) .. pack('>I7I7', 0, 0), units, (step.lasts(v)))
  end

  -- redate mirrors tokenBucket.Redate.
  function step.redate(v, _, longest)
    local n, _, q, r, full, reach, used = bucket(v)
    if used <= full + math.max(reach, longest) then return v end
    local burst = read('>I7', v, 15)
    local more, part = muldiv(r, burst, n)
    return sub(v, 1, 28) .. pack('>I7I7', now + burst * q + more, part)
  end

  -- larger mirrors larger in variant.go.
  function step.larger(v, place)
    local burst, debt = read('>I7I7', numbers, place + 21)
    local own, owed = read('>I7I7', v, 15)
    local more = burst + debt - own - owed
    return (more > 0 or more == 0 and burst > own) and parameters(place) .. sub(v, 29) or v
  end
end
