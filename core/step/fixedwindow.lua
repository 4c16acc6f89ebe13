-- The twin of fixedwindow.go. The numbers of a policy are period, limit. A value is period,
-- then start, count. If windows begin with the first unit, 2^52 is added to the period.

--@helpers
-- The numbers that were read last, and their place. Questions mostly follow others like them.
local fixedPlace, fixedTag, fixedOf, fixedPeriod, fixedLimit
local FROMFIRST = 4503599627370496

--@admits
if place ~= fixedPlace then
  fixedPlace, fixedTag, fixedOf, fixedLimit = place, read('>I7I7I7', numbers, place - 7)
  fixedPeriod = fixedOf > FROMFIRST and fixedOf - FROMFIRST or fixedOf
end
local tag, of
z = o + 27
if not own then
  a = 0
  b = 0
elseif #own >= z then
  tag, of, a, b = read('>I7I7I7I7', own, o)
  if tag ~= fixedTag or of ~= fixedOf or a - now > fixedPeriod and not others then a = nil end
end
if a then
  if a <= now and (b == 0 or a + fixedPeriod <= now) then
    a = fixedOf == fixedPeriod and now - now % fixedPeriod or now
    b = 0
  end
  ok = n <= fixedLimit - b
  c = fixedPeriod
  d = fixedLimit
end

--@charge
state = pack('>I7I7', a, b + n)
if b > 0 then
  life = 0
  patch = state
else
  life = a + c - now
end
if others or not patch then new = sub(numbers, place, place + 6) .. state end

--@refuse
state = pack('>I7I7', a, max(b, min(b + min(n, d), d)))
new = sub(numbers, place, place + 6) .. state
life = a + c - now

--@state
if own then state = sub(own, o + 14, o + 27) end

--@rare
do
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
