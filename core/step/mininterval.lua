-- The twin of mininterval.go. A value is last, newest.
do
  local PERIOD = 1
  twins[5] = {
    header = 0, calls = true, -- it counts calls, not units

    admits = function(m, v, now)
      local last, newest = 0, 0
      if v then last, newest = words(v, 1, 2) end
      return last == 0 or last + m[PERIOD] <= now, newest
    end,

    charge = function(m, _, now, _, newest)
      newest = max(now, newest)
      return pack(newest, newest), newest + m[PERIOD] - now
    end,

    giveback = function(m, v, now, at)
      local last, newest = words(v, 1, 2)
      if last == at then return pack(0, newest), newest - now end
      return v, last + m[PERIOD] - now
    end,
  }
end
