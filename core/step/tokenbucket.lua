-- The twin of tokenbucket.go. A value is limit, period, burst, then T, f.
do
  local BURST, N, Q, R, FULL, FULLF = 3, 4, 5, 6, 7, 8

  local function cost(n, q, r, c)
    local cr = c * r
    local f = cr % n
    return c * q + (cr - f) / n, f
  end

  -- alike reports whether a value's rate is that of the policy.
  local function alike(m, v)
    return sub(v, 1, 21) == m.header or sub(v, 1, 14) == sub(m.header, 1, 14)
  end

  -- muldivup is a*b/c, rounded up, for a <= c <= 2^52: by long multiplication.
  local function muldivup(a, b, c)
    local q, rest, bit = 0, 0, 4503599627370496
    while bit >= 1 do
      q, rest = 2 * q, 2 * rest
      if rest >= c then q, rest = q + 1, rest - c end
      if b >= bit then
        b, rest = b - bit, rest + a
        if rest >= c then q, rest = q + 1, rest - c end
      end
      bit = bit / 2
    end
    return rest > 0 and q + 1 or q
  end

  -- converted returns the use, in this policy's time, of a value kept under others.
  local function converted(m, v, now, t, f)
    local limit, period, burst = read('>I7I7I7', v, 1)
    local a, b = limit, period
    while b ~= 0 do
      local rest = a % b -- in one assignment, miniredis would use the new a
      a = b
      b = rest
    end
    local n, p = limit / a, period / a
    local q, r = div(p, n), p % n
    local most = min(burst, m[BURST])
    local overt, overf = cost(n, q, r, most)
    overt, overf = t - overt, f - overf
    if overf < 0 then overt, overf = overt - 1, overf + n end
    if overt < 0 then overt, overf = 0, 0 end
    t, f = t - overt, f - overf
    if f < 0 then t, f = t - 1, f + n end
    local whole, hi = 0, most
    while whole < hi do
      local mid = whole + div(hi - whole + 1, 2)
      local ct, cf = cost(n, q, r, mid)
      if ct < t or ct == t and cf <= f then whole = mid else hi = mid - 1 end
    end
    local ct, cf = cost(n, q, r, whole)
    local part = muldivup((t - ct) * n + f - cf, m[Q] * m[N] + m[R], p)
    t, f = cost(m[N], m[Q], m[R], whole)
    t, f = t + div(part, m[N]), f + part % m[N]
    if f >= m[N] then t, f = t + 1, f - m[N] end
    f = f + muldivup(overf, m[N], n)
    if f >= m[N] then t, f = t + 1, f - m[N] end
    return t + min(overt, 9007199254740990 - now - t), f
  end

  local function used(m, v, now)
    local t, f = read('>I7I7', v, 22)
    t = t - now
    if t < 0 then return 0, 0 end
    if not alike(m, v) then return converted(m, v, now, t, f) end
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

    adopt = function(m, v, now)
      if alike(m, v) then return nil end
      local t, f = used(m, v, now)
      return m.header .. pack('>I7I7', now + t, f), t + 1
    end,

    giveback = function(m, v, now, at, n)
      if not alike(m, v) then return nil end
      local t, f = read('>I7I7', v, 22)
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
