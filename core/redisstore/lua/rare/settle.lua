-- room mirrors room in step.go: the largest number of units from lo to hi that a policy admits. It admits lo.
function rare.room(step, v, from, lo, hi, place, number)
  if step.admits(v, from, hi, place, number) then return hi end -- mostly
  while lo < hi do
    local mid = lo + div(hi - lo + 1, 2)
    if step.admits(v, from, mid, place, number) then lo = mid else hi = mid - 1 end
  end
  return lo
end

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

  local uncovered, fit, new, left, right, ends = 0, 0
  if not step.max and actual > 0 then
    return 0 -- it counts calls, and the call took place
  elseif actual < n then
    if own then new, left, right, ends = step.giveback(own, from, at, n - actual, place, number) end
  elseif actual > n then
    fit = rare.room(step, own, from, 0, math.min(actual - n, step.max(place)), place, number)
    uncovered = actual - n - fit
    if fit > 0 then
      local _, _, a, b, c, d, e, f = step.admits(own, from, fit, place, number)
      new, left, right, ends = step.charge(own, from, fit, place, number, a, b, c, d, e, f)
    end
  end
  if new then
    if others then new, left, right, ends = rare.keep(algorithm, form, place, new, others, fit) end
    save(number, form, v, left or begin, right or z, new, ends)
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

-- special is decide for a question to settle, or with an EXTRA before it.
function rare.special(pos, piece, mode)
  if mode == 3 then
    local done, err = pcall(settle, pos, piece)
    if not done then failed = err end
  else
    local allowed, granted = decide(pos + 8, piece, true, read('>I7', questions, pos + 1), 8)
    if allowed and not failed then out[piece] = out[piece] .. pack('>I7', granted) end
  end
end

-- fail replies with the error of the question at byte pos. It returns one that all questions have, such as
-- READONLY or OOM. before is how many pieces the reply had before it, and done what work was.
function rare.fail(pos, before, done)
  pieces = before + 1
  if failed == 'too much' then
    out[pieces] = '\16' .. pack('>I7', work - done)
  else
    local err = type(failed) == 'table' and failed.err or tostring(failed)
    local text, code = string.match(err, '((%u%u%u+) .*)') -- an error of the server
    if code and code ~= 'WRONGTYPE' and code ~= 'ERR' then return {err = text} end
    err = sub(err, 1, 200)
    out[pieces] = '\8' .. string.char(0, #err) .. err
  end
  failed, work, after = nil, done, pos
  if string.byte(questions, pos) == 4 then after = pos + 8 end
  repeat
    local mode, more, _, _, _, _, _, _, n = string.byte(questions, after, after + 8)
    after = after + (mode == 3 and 31 or n == 0 and 17 or 10)
  until more == 0
end

-- The others.
while question <= #questions do
  local before, done = pieces, work
  decide(question, before + 1, true, 0, 8)
  if failed then
    local err = rare.fail(question, before, done)
    if err then return err end
  end
  question = after
end
return table.concat(out, '', 1, pieces)
