-- The twin of mininterval.go. A value is period, then last, newest.
twins[5] = function(p)
  --@constants PERIOD, HEADER
  local PERIOD = read('>I7', p, 3)
  local HEADER = sub(p, 3, 9)
  --@end
  local twin = {header = HEADER, calls = true} -- it counts calls, not units

  function twin.intact(v)
    --@intact
    return #v == 21 and (sub(v, 1, 7) == HEADER or isperiod(v))
    --@end
  end

  function twin.admits(v)
    --@admits
    local last, newest = 0, 0
    if v then last, newest = read('>I7I7', v, 8) end
    local ok = last == 0 or last + PERIOD <= now
    --@end
    return ok, nil, nil, nil, newest
  end

  function twin.charge(_, _, _, newest)
    --@charge
    newest = max(now, newest)
    local words = pack('>I7I7', newest, newest)
    return HEADER .. words, newest + PERIOD - now, words
    --@end
  end

  function twin.giveback(v, at)
    if sub(v, 1, 7) ~= HEADER then return nil end
    local last, newest = read('>I7I7', v, 8)
    if last == at then last = 0 end
    return HEADER .. pack('>I7I7', last, newest), newest + PERIOD - now
  end

  return twin
end
