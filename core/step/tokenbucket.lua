-- The twin of tokenbucket.go. The numbers of a policy are limit, period, burst, and the greatest
-- common divisor of limit and period. A value is limit, period, burst, then T, f: the burst is
-- the largest that it is kept for.

--@helpers
-- The numbers that were read last, and their place. Questions mostly follow others like them.
local bucketPlace, bucketTag, bucketLimit, bucketPeriod, bucketBurst, q, full, per, r, fullf, quarter

--@admits
-- t, f are the use, and then what it would be with the charge. c is the burst that the value is
-- kept for, d the T under the same numbers, if there is one, and e more than a quarter of the
-- time in which it fills.
if place ~= bucketPlace then
  local divisor
  bucketPlace, bucketTag, bucketLimit, bucketPeriod, bucketBurst, divisor = place, read('>I7I7I7I7I7', numbers, place - 7)
  per, q = bucketLimit / divisor, bucketPeriod / divisor
  r = q % per
  q = (q - r) / per
  full = bucketBurst * r
  fullf = full % per
  full = bucketBurst * q + (full - fullf) / per
  quarter = (full - full % 4) / 4 + 1
end
local tag, limit, period, burst, t, f
z = o + 41
c = bucketBurst
e = quarter
if not own then
  t = 0
  f = 0
elseif #own >= z then
  tag, limit, period, burst, t, f = read('>I7I7I7I7I7I7', own, o)
  if tag ~= bucketTag or limit ~= bucketLimit or period ~= bucketPeriod then
    t = nil
  else
    if burst == c then
      d = t
    elseif burst > c and (others or t > now or t == now and f > 0) then -- or what it is kept for is over
      c = burst
      e = min(div(q * burst + burst, 4) + 2, 2251799813685248) -- 2^51: a value may be garbage
    end
    t = t - now
    if t > 2 * full and not others then t = nil end
  end
end
if t then
  if t < 0 then
    t = 0
    f = 0
  end
  local part = n * r
  f = f + part % per
  t = t + n * q + (part - part % per) / per
  if f >= per then
    t = t + 1
    f = f - per
  end
  ok = t < full or t == full and f <= fullf
  a = t
  b = f
end

--@charge
local till = now + a
state = pack('>I7I7', till, b)
if d and d - d % e == till - till % e then
  life = 0
  patch = state
else
  -- The life goes beyond the end of the quarter that T is in, by the clock, so that one write in
  -- each quarter has to look at the life that the value has.
  life = a + e + 1
end
if others or not patch then new = sub(numbers, place, place + 13) .. pack('>I7', c) .. state end

--@state
if own then state = sub(own, o + 28, o + 41) end

--@rare
do
  -- muldiv returns x*y/z and the remainder, for x <= z <= 2^52, y < 2^53: by long
  -- multiplication.
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

  -- bucket returns n, p, q, r of a value, the time in which an empty one fills, and used, f.
  local function bucket(v)
    local limit, period, burst, t, f = read('>I7I7I7I7I7', v, 1)
    local a, b = limit, period
    while b ~= 0 do
      local rest = a % b -- in one assignment, miniredis would use the new a
      a = b
      b = rest
    end
    local n, p = limit / a, period / a
    local q = div(p, n)
    local r = p - q * n
    local full, rest = muldiv(r, burst, n)
    if rest > 0 then full = full + 1 end
    t = t - now
    if t < 0 then t, f = 0, 0 end
    return n, p, q, r, burst * q + full, t, f
  end

  local function count(v, units, till)
    local n, p, q, r, full, t, f = bucket(v)
    local most = max(full, till - now)
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

  local function lasts(v)
    local t, f = read('>I7I7', v, 22)
    local n, p, _, _, full, used, part = bucket(v)
    local units, rest = muldiv(n, used, p)
    return f > 0 and t + 1 or t, full, rest + part >= p and units + 1 or units
  end

  rare[1] = {
    alike = 14,
    most = function(place) return (read('>I7', numbers, place + 14)) end,

    giveback = function(own, at, n, key, place)
      local _, _, _, most, _, more = admits(1, tagged(own, place), 1, key, place, not key)
      local limit, period, burst, divisor = read('>I7I7I7I7', numbers, place)
      local t, f = read('>I7I7', own, 22)
      local per, p = limit / divisor, period / divisor
      local r = p % per
      local q = (p - r) / per
      n = min(n, burst)
      local backt, backf = n * q + div(n * r, per) - max(now - at, 0), n * r % per
      if backt >= 0 then
        t, f = t - backt, f - backf
        if f < 0 then t, f = t - 1, f + per end
        if t < 0 then t, f = 0, 0 end
      end
      return sub(own, 1, 14) .. pack('>I7I7I7', most, t, f), t + more + 1 - now
    end,

    intact = function(v)
      if #v ~= 35 then return false end
      local limit, period, burst = read('>I7I7I7', v, 1)
      return limit >= 1 and limit <= period and period <= 4503599627370496 and burst >= 1
        and burst * (period / limit) <= 9007199254740992
    end,

    adopt = function(v, place)
      local n, per, _, _, _, t, f = bucket(v)
      local units, part = muldiv(n, t, per)
      if part + f > 0 then units = units + 1 end
      if part + f > per then units = units + 1 end
      return count(sub(numbers, place, place + 20) .. pack('>I7I7', 0, 0), units, (lasts(v)))
    end,

    redate = function(v, _, longest)
      local n, _, q, r, full, used = bucket(v)
      if used <= full + max(full, longest) then return v end
      local burst = read('>I7', v, 15)
      local more, part = muldiv(r, burst, n)
      return sub(v, 1, 21) .. pack('>I7I7', now + burst * q + more, part)
    end,

    enlarge = function(v, place)
      return read('>I7', numbers, place + 14) > read('>I7', v, 15) and sub(numbers, place, place + 20) .. sub(v, 22) or v
    end,

    count = count,
    lasts = lasts,
  }
end
