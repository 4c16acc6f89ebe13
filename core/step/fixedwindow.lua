-- The twin of fixedwindow.go. The numbers of a policy are period, limit. A value is period,
-- then start, count. If windows begin with the first unit, 2^52 is added to the period.

--@helpers
-- The numbers that were read last, and their place. Questions mostly follow others like them.
local fixedPlace, fixedOf, fixedPeriod, fixedLimit
local FROMFIRST = 4503599627370496

--@admits
if place ~= fixedPlace then
  fixedPlace, fixedOf, fixedLimit = place, read('>I7I7', numbers, place)
  fixedPeriod = fixedOf > FROMFIRST and fixedOf - FROMFIRST or fixedOf
end
local of, start, count = fixedOf, 0, 0
if own then
  if #own == 21 then of, start, count = read('>I7I7I7', own, 1) else of = nil end
end
if of == fixedOf and (others or start - now <= fixedPeriod) then
  if start <= now and (count == 0 or start + fixedPeriod <= now) then
    start, count = of == fixedPeriod and now - now % of or now, 0
  end
  ok, a, b, c, d, e = n <= fixedLimit - count, start, count, fixedPeriod, fixedLimit, of
end

--@charge
state = pack('>I7I7', a, b + n)
if b > 0 then life, patch = 0, state else life = a + c - now end
if others or not patch then new = pack('>I7', e) .. state end

--@refuse
state = pack('>I7I7', a, max(b, min(b + min(n, d), d)))
new, life = pack('>I7', e) .. state, a + c - now

--@state
if own then state = sub(own, 8) end

--@rare
if byte(used, 2) > 0 then
  -- window returns the period of a value, its start and count, and the value's beginning.
  local function window(v)
    local period, start, count = read('>I7I7I7', v, 1)
    if period > FROMFIRST then period = period - FROMFIRST end
    return period, start, count, sub(v, 1, 7)
  end

  -- begin returns the start of the window that an instant is in, if none is open.
  local function begin(of, at)
    local period = read('>I7', of, 1)
    return period > FROMFIRST and at or at - at % period
  end

  local function lasts(v)
    local period, start, count = window(v)
    return count > 0 and start + period or start, period, period
  end

  rare[2] = {
    alike = 7,
    most = function(place) return (read('>I7', numbers, place + 7)) end,

    giveback = function(own, at, n)
      local period, start, count, of = window(own)
      if start <= at and at < start + period then count = max(count - n, 0) end
      return of .. pack('>I7I7', start, count), start + period - now
    end,

    intact = function(v)
      local period = #v == 21 and window(v) or 0
      return period >= 1 and period <= FROMFIRST
    end,

    -- adopt puts the count where its events may have happened at the latest.
    adopt = function(v, place)
      local from, start, count = window(v)
      local last, of = min(start + from - 1, max(now, start)), sub(numbers, place, place + 6)
      return of .. pack('>I7I7', begin(of, last), count)
    end,

    redate = function(v, place)
      local period, start, count, of = window(v)
      if start - now <= period then return v end
      return of .. pack('>I7I7', begin(of, now), max(count, (read('>I7', numbers, place + 7))))
    end,

    count = function(v, n)
      local _, start, count, of = window(v)
      if lasts(v) <= now then start, count = begin(of, now), 0 end
      return of .. pack('>I7I7', start, min(count + n, 9007199254740991))
    end,

    lasts = lasts,
  }
end
