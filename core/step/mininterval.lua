-- The twin of mininterval.go. A value is period, then last, newest.
do
  local PERIOD = 1
  twins[5] = {
    format = '>I7', header = 1, calls = true, -- it counts calls, not units

    admits = function(m, v, now)
      local last, newest = 0, 0
      if v then last, newest = read('>I7I7', v, 8) end
      return last == 0 or last + m[PERIOD] <= now, newest
    end,

    charge = function(m, _, now, _, newest)
      newest = max(now, newest)
      return m.header .. pack('>I7I7', newest, newest), newest + m[PERIOD] - now
    end,

    giveback = function(m, v, now, at)
      if sub(v, 1, 7) ~= m.header then return nil end
      local last, newest = read('>I7I7', v, 8)
      if last == at then last = 0 end
      return m.header .. pack('>I7I7', last, newest), newest + m[PERIOD] - now
    end,
  }
end
