-- The twin of fixedwindow.go. A value is period, then start, count.
twins[2] = function(p)
  --@constants PERIOD, LIMIT, HEADER
  local PERIOD, LIMIT = read('>I7I7', p, 3)
  local HEADER = sub(p, 3, 9)
  --@end
  local twin = {header = HEADER, limit = LIMIT}

  function twin.intact(v)
    --@intact
    return #v == 21 and (sub(v, 1, 7) == HEADER or isperiod(v))
    --@end
  end

  function twin.admits(v, n)
    --@admits
    local current = now - now % PERIOD
    local start, count, value, life, state = current, 0
    if v then
      start, count = read('>I7I7', v, 8)
      if sub(v, 1, 7) ~= HEADER then -- where its events may have happened at the latest
        local last = min(start + read('>I7', v, 1) - 1, max(now, start))
        start = last - last % PERIOD
        state, life = pack('>I7I7', start, count), start + PERIOD - now
        value = HEADER .. state
      end
      if start < current then start, count = current, 0 end
    end
    local ok = n <= LIMIT - count
    --@end
    return ok, value, life, state, start, count
  end

  function twin.charge(_, n, _, start, count)
    --@charge
    local words = pack('>I7I7', start, count + n)
    return HEADER .. words, count > 0 and 0 or start + PERIOD - now, words
    --@end
  end

  function twin.refuse(_, n, _, start, count)
    --@refuse
    local words = pack('>I7I7', start, max(count, min(count + min(n, LIMIT), LIMIT)))
    return HEADER .. words, start + PERIOD - now, words
    --@end
  end

  function twin.giveback(v, at, n)
    if sub(v, 1, 7) ~= HEADER then return nil end
    local start, count = read('>I7I7', v, 8)
    if start == at - at % PERIOD then count = max(count - n, 0) end
    return HEADER .. pack('>I7I7', start, count), start + PERIOD - now
  end

  return twin
end
