-- The twin of mininterval.go. The number of a policy is period. A value is period, then last,
-- newest.

--@admits
local period = read('>I7', numbers, place)
local of, last, newest = period, 0, 0
if own then
  if #own == 21 then of, last, newest = read('>I7I7I7', own, 1) else of = nil end
end
if of == period and (others or newest - now <= of) then
  ok, a, b = last == 0 or last + period <= now, newest, period
end

--@charge
local newest = max(now, a)
state = pack('>I7I7', newest, newest)
new, life = sub(numbers, place, place + 6) .. state, newest + b - now

--@state
if own then state = sub(own, 8) end

--@rare
if byte(used, 5) > 0 then
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
