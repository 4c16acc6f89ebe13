-- The twin of tokenbucket.go. A value is limit, period, burst, then T, f.

--@helpers
-- isbucket reports whether v begins with the numbers of a token bucket.
local function isbucket(v)
  local limit, period, burst = read('>I7I7I7', v, 1)
  return limit >= 1 and limit <= period and period <= 4503599627370496 and burst >= 1
    and burst * (period / limit) <= 9007199254740992
end
--@end

twins[1] = function(p)
  --@constants LIMIT, PERIOD, BURST, N, Q, R, FULL, FULLF, HEADER
  local LIMIT, PERIOD, BURST, N, Q, R, FULL, FULLF = read('>I7I7I7I7I7I7I7I7', p, 3)
  local HEADER = sub(p, 3, 23)
  --@end
  local twin = {header = HEADER, limit = BURST}

  function twin.intact(v)
    --@intact
    return #v == 35 and (sub(v, 1, 21) == HEADER or isbucket(v))
    --@end
  end

  -- t, f are the use, and then what it would be with the charge.
  function twin.admits(v, n)
    --@admits
    local t, f, value, life, state = 0, 0
    if v then
      t, f = read('>I7I7', v, 22)
      t = t - now
      if t < 0 then t, f = 0, 0 end
      if sub(v, 1, 21) ~= HEADER and sub(v, 1, 14) ~= sub(HEADER, 1, 14) then
        local limit, period, burst = read('>I7I7I7', v, 1)
        local a, b = limit, period
        while b ~= 0 do
          local rest = a % b -- in one assignment, miniredis would use the new a
          a = b
          b = rest
        end
        local m, q, r = limit / a, div(period, limit), 0
        r = period / a - q * m

        local function cost(c)
          local cr = c * r
          return c * q + div(cr, m), cr % m
        end

        -- muldivup is x*y/z, rounded up, for x <= z <= 2^52: by long multiplication.
        local function muldivup(x, y, z)
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
          return rest > 0 and product + 1 or product
        end

        local most = min(burst, BURST)
        local overt, overf = cost(most)
        overt, overf = t - overt, f - overf
        if overf < 0 then overt, overf = overt - 1, overf + m end
        if overt < 0 then overt, overf = 0, 0 end
        t, f = t - overt, f - overf
        if f < 0 then t, f = t - 1, f + m end
        local units, hi = 0, most
        while units < hi do
          local mid = units + div(hi - units + 1, 2)
          local ct, cf = cost(mid)
          if ct < t or ct == t and cf <= f then units = mid else hi = mid - 1 end
        end
        local ct, cf = cost(units)
        local part = muldivup((t - ct) * m + f - cf, Q * N + R, q * m + r)
        t, f = units * Q + div(units * R, N) + div(part, N), units * R % N + part % N
        if f >= N then t, f = t + 1, f - N end
        f = f + muldivup(overf, N, m)
        if f >= N then t, f = t + 1, f - N end
        t = t + min(overt, 9007199254740990 - now - t)
        state, life = pack('>I7I7', now + t, f), t + 1
        value = HEADER .. state
      end
    end
    local part = n * R
    f = f + part % N
    t = t + n * Q + (part - part % N) / N
    if f >= N then t, f = t + 1, f - N end
    local ok = t < FULL or t == FULL and f <= FULLF
    --@end
    return ok, value, life, state, t, f
  end

  function twin.charge(_, _, _, t, f)
    --@charge
    local words = pack('>I7I7', now + t, f)
    return HEADER .. words, t + 1, words
    --@end
  end

  function twin.giveback(v, at, n)
    if sub(v, 1, 14) ~= sub(HEADER, 1, 14) then return nil end
    local t, f = read('>I7I7', v, 22)
    n = min(n, BURST)
    local backt, backf = n * Q + div(n * R, N) - max(now - at, 0), n * R % N
    if backt >= 0 then
      t, f = t - backt, f - backf
      if f < 0 then t, f = t - 1, f + N end
      if t < 0 then t, f = 0, 0 end
    end
    return HEADER .. pack('>I7I7', t, f), t + 1 - now
  end

  return twin
end
