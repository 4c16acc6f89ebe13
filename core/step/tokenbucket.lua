-- The twin of tokenbucket.go. A value is limit, period, burst, then T, f.
do
  local BURST, N, Q, R, FULL, FULLF = 3, 4, 5, 6, 7, 8

  local function cost(n, q, r, c)
    local cr = c * r
    local f = cr % n
    return c * q + (cr - f) / n, f
  end

  -- adopt returns the use, in this policy's time, of a value kept under others.
  local function adopt(m, v, t, f)
    local limit, period, burst = read('>I7I7I7', v, 1)
    local a, b = limit, period
    while b ~= 0 do
      local rest = a % b -- in one assignment, miniredis would use the new a
      a = b
      b = rest
    end
    local n, p = limit / a, period / a
    local q, r = div(p, n), p % n
    local lo, hi = 0, burst
    while lo < hi do
      local mid = lo + div(hi - lo, 2)
      local ct, cf = cost(n, q, r, mid)
      if ct < t or ct == t and cf < f then lo = mid + 1 else hi = mid end
    end
    return cost(m[N], m[Q], m[R], min(lo, m[BURST]))
  end

  local function used(m, v, now)
    local t, f = read('>I7I7', v, 22)
    t = t - now
    if t < 0 then return 0, 0 end
    if sub(v, 1, 21) ~= m.header then return adopt(m, v, t, f) end
    return t, f
  end

  twins[1] = {
    format = '>I7I7I7I7I7I7I7I7', header = 3, limit = BURST,

    admits = function(m, v, now, n)
      local t, f = cost(m[N], m[Q], m[R], n)
      if v then
        local ut, uf = used(m, v, now)
        t, f = t + ut, f + uf
        if f >= m[N] then t, f = t + 1, f - m[N] end
      end
      return t < m[FULL] or t == m[FULL] and f <= m[FULLF], t, f
    end,

    charge = function(m, _, now, _, t, f)
      return m.header .. pack('>I7I7', now + t, f), t + 1
    end,

    giveback = function(m, v, now, at, n)
      local t, f = read('>I7I7', v, 22)
      if sub(v, 1, 21) ~= m.header then
        t, f = used(m, v, now)
        t = now + t
      end
      local ct, cf = cost(m[N], m[Q], m[R], min(n, m[BURST]))
      ct = ct - max(now - at, 0)
      if ct >= 0 then
        t, f = t - ct, f - cf
        if f < 0 then t, f = t - 1, f + m[N] end
        if t < 0 then t, f = 0, 0 end
      end
      return m.header .. pack('>I7I7', t, f), t + 1 - now
    end,
  }
end
