-- Corrects charges to what was used, or gives them back: Cell.Settle for each cell of a question.

-- locate returns where in a value the record of the policy is: behind all, if there is none.
local function locate(v, place)
  local begin, z, mine = #v + 1, #v, read('>I7', numbers, place)
  records(v, 8, function(tag, i, j)
    if tag == mine - mine % LENGTHS then begin, z = i, j end
  end)
  return begin, z
end

-- settled mirrors Cell.Settle, for the cell at byte pos of questions. It returns the units that did not fit.
local function settled(pos, algorithm, form, number, place)
  local step, n, at, actual = steps[algorithm], read('>I7I7I7', questions, pos + 10)
  local v, others = values[number] or fetch(pos, number, form), nil
  if failed then error(failed, 0) end
  if v and #v < 8 then error(ANOTHER, 0) end
  local begin, z = 8, v and #v or 7
  if v and form < 2 then begin, z = locate(v, place) end
  local own, from = v and (form > 1 or z > begin + 6) and v, begin
  if own and step.admits(own, from, 1, place, number) == nil then
    if form > 1 and #v == BEGINNING then
      v = redis.call('GET', KEYS[number])
      z = #v
    end
    own, others = take(step, sub(v, form < 2 and begin + 7 or begin, z), place)
    if own and form < 2 then own = tagged(own, place) end
    from = 1
  end

  local uncovered, more, new, left, right, ends = 0, math.max(actual - n, 0), nil, nil, nil, nil
  if not step.max and actual > 0 then
    return 0 -- it counts calls, and the call took place
  elseif actual < n then
    if own then new, left, right, ends = step.giveback(own, from, at, n - actual, place, number) end
  elseif actual > n then
    uncovered = more - rare.room(step, own, from, 0, math.min(more, step.max(place)), place, number)
    new, left, right, ends = step.report(own, from, more, place, number)
  end
  if new then
    if others then new, left, right, ends = rare.keep(algorithm, form, place, new, others, more) end
    save(number, form, v, left or begin, right or z, new, ends, step, place)
    if failed then error(failed, 0) end
  end
  return uncovered
end

-- settle settles each cell of a question by itself.
local function settle(pos, piece)
  repeat
    local _, more, algorithm, _, form, number, high, low = string.byte(questions, pos, pos + 7)
    out[piece] = '\3' .. pack('>I7', settled(pos, algorithm, form, number, 256 * high + low))
    pieces, after, pos, piece = piece, pos + 31, pos + 31, piece + 1
  until more == 0
end
