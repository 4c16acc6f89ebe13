-- records calls f with the tag of each record, without the length, and where it begins and ends.
local function records(v, i, f)
  while i <= #v do
    local tag = #v >= i + 6 and read('>I7', v, i) or error(ANOTHER, 0)
    local length = tag % LENGTHS
    if #v < i + 6 + length then error(ANOTHER, 0) end
    f(tag - length, i, i + 6 + length)
    i = i + 7 + length
  end
end

-- counts reports whether a record is not fresh, also of an algorithm that no question uses. Of one that
-- only another release has, it is taken for one that counts.
local function counts(tag, v)
  local step = steps[tag / LENGTHS % 8]
  if not step then return true end
  for _, x in ipairs(variants(step, v)) do
    if x.till > now then return true end
  end
end

-- sorted returns the records of v in the order of the cells from byte pos of questions on, with an empty one
-- where there is none; then those of other policies that still count: a plan, or another release, may
-- have others. In tests with an instant of their own all stay.
local function sorted(v, pos)
  local found, others = {}, {}
  records(v, 1, function(tag, i, j)
    if found[tag] then error(ANOTHER, 0) end
    found[tag] = sub(v, i, j)
    others[#others + 1] = tag
  end)
  local all = {}
  repeat
    local _, _, _, _, form, _, high, low, n = string.byte(questions, pos, pos + 8)
    local tag = read('>I7', numbers, 256 * high + low)
    tag = tag - tag % LENGTHS
    all[#all + 1] = found[tag] or pack('>I7', tag)
    found[tag] = nil
    pos = pos + (n == 0 and 17 or 10)
  until form == 1
  for _, tag in ipairs(others) do
    local x = found[tag]
    if x and #x > 7 and (ARGV[1] ~= '' or counts(tag, sub(x, 8))) then all[#all + 1] = x end
  end
  return table.concat(all)
end

-- look is find, but raises an error.
local function look(pos, algorithm, form, number, place, v, begin)
  local step, own, z = steps[algorithm], nil, nil
  if #v < 8 then error(ANOTHER, 0) end
  if form < 2 then
    v = sub(v, 1, begin - 1) .. sorted(sub(v, begin), pos)
    local admitted, upto = step.admits(v, begin, 1, place, number)
    if admitted ~= nil then return v, v, begin, nil, upto end
    z = begin + 6 + read('>I7', v, begin) % LENGTHS
    own = z > begin + 6 and sub(v, begin + 7, z)
  else
    if #v == BEGINNING then v = redis.call('GET', KEYS[number]) end
    own, z = sub(v, 8), #v
  end
  local others = {}
  if own then own, others = take(step, own, place) end
  work = work + div(#v + (own and #own or 0), 7)
  if own and form < 2 then own = tagged(own, place) end
  return v, own, 1, others, z
end

-- find mirrors Cell.find, for a value that the step does not decide as it is. It returns the value, with its
-- records in the order of the cells; what has the record, and from which byte on; the states of other
-- parameters, unless the record is that in the value; where in that the record ends; and what admits does.
function rare.find(pos, algorithm, form, number, place, v, begin, n)
  local done, own, at, others, z
  done, v, own, at, others, z = pcall(look, pos, algorithm, form, number, place, v, begin)
  if not done then
    failed = v
    return
  end
  local admitted, _, a, b, c, d, e, f = steps[algorithm].admits(own, at, n, place, number)
  return v, own, at, others, z, admitted, a, b, c, d, e, f
end
