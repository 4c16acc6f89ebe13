-- The twin of mininterval.go. The number of a policy is period. A value is period, then last,
-- newest.

--@admits
local expected, period = read('>I7I7', numbers, place - 7)
local tag, of, before, newest
z = o + 27
if not own then
  before = 0
  newest = 0
elseif #own >= z then
  tag, of, before, newest = read('>I7I7I7I7', own, o)
  if tag ~= expected or of ~= period or newest - now > period and not others then newest = nil end
end
if newest then
  ok = before == 0 or before + period <= now
  a = newest
  b = period
end

--@charge
local newest = max(now, a)
state = pack('>I7I7', newest, newest)
new, life = sub(numbers, place, place + 6) .. state, newest + b - now

--@state
if own then state = sub(own, o + 14, o + 27) end

--@rare
do
  rare[5] = {
    alike = 7,

    giveback = function(own, at)
      local period, last, newest = read('>I7I7I7', own, 1)
      if last == at then last = 0 end
      return sub(own, 1, 7) .. pack('>I7I7', last, newest), newest + period - now
    end,

    intact = function(v) return #v == 21 and isperiod(v) end,

    adopt = function(v, place) return sub(numbers, place, place + 6) .. sub(v, 8) end,

    redate = function(v)
      local period, _, newest = read('>I7I7I7', v, 1)
      return newest - now > period and sub(v, 1, 7) .. pack('>I7I7', now, now) or v
    end,

    count = function(v)
      local newest = max(now, (read('>I7', v, 15)))
      return sub(v, 1, 7) .. pack('>I7I7', newest, newest)
    end,

    lasts = function(v)
      local period, last, newest = read('>I7I7I7', v, 1)
      return last > 0 and last + period or newest, period, period
    end,
  }
end
