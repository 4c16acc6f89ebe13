-- The twin of fixedwindow.go. The numbers of a policy are period, limit. A value is period,
-- then start, count.

--@helpers
-- The numbers that were read last, and their place. Questions mostly follow others like them.
local fixedPlace, fixedPeriod, fixedLimit

--@admits
if place ~= fixedPlace then
  fixedPlace, fixedPeriod, fixedLimit = place, read('>I7I7', numbers, place)
end
local of, start, count = fixedPeriod, 0, 0
if own then
  if #own == 21 then of, start, count = read('>I7I7I7', own, 1) else of = nil end
end
if of == fixedPeriod and (others or start - now <= of) then
  local current = now - now % of
  if start < current then start, count = current, 0 end
  ok, a, b, c, d = n <= fixedLimit - count, start, count, of, fixedLimit
end

--@charge
state = pack('>I7I7', a, b + n)
if b > 0 then life, patch = 0, state else life = a + c - now end
if others or not patch then new = pack('>I7', c) .. state end

--@refuse
state = pack('>I7I7', a, max(b, min(b + min(n, d), d)))
new, life = pack('>I7', c) .. state, a + c - now

--@state
if own then state = sub(own, 8) end

--@rare
if byte(used, 2) > 0 then
  rare[2] = {
    alike = 7,
    most = function(place) return (read('>I7', numbers, place + 7)) end,

    giveback = function(own, at, n)
      local period, start, count = read('>I7I7I7', own, 1)
      if start == at - at % period then count = max(count - n, 0) end
      return sub(own, 1, 7) .. pack('>I7I7', start, count), start + period - now
    end,

    intact = function(v) return #v == 21 and isperiod(v) end,

    -- adopt puts the count where its events may have happened at the latest.
    adopt = function(v, place)
      local from, start, count = read('>I7I7I7', v, 1)
      local last, period = min(start + from - 1, max(now, start)), (read('>I7', numbers, place))
      return sub(numbers, place, place + 6) .. pack('>I7I7', last - last % period, count)
    end,

    redate = function(v, place)
      local period, start, count = read('>I7I7I7', v, 1)
      if start - now <= period then return v end
      return sub(v, 1, 7) .. pack('>I7I7', now - now % period, max(count, (read('>I7', numbers, place + 7))))
    end,

    count = function(v, n)
      local period, start, count = read('>I7I7I7', v, 1)
      local current = now - now % period
      if start < current then start, count = current, 0 end
      return sub(v, 1, 7) .. pack('>I7I7', start, min(count + n, 9007199254740991))
    end,

    lasts = function(v)
      local period, start, count = read('>I7I7I7', v, 1)
      return count > 0 and start + period or start, period, period
    end,
  }
end
