-- rare has functions of each algorithm that is used. They are called with a whole value of
-- the policy's own, or the beginning of a long log, and the place of the policy's numbers.
--
--   alike: so many bytes are the same in every value that means the same under these numbers
--   most(place): the largest charge; missing if it counts calls, not units
--   giveback(own, at, n, key, place): the new value and its life, as of a charge, without n of
--     the units that were charged at the instant at
--
-- And these are for whole values under any numbers, as the methods of step.Step:
--
--   intact(v): whether v is a value of this algorithm
--   adopt(v, place): the value of the policy with the usage of v
--   redate(v, place, longest): v, or if it is ahead of now, full use as of now
--   enlarge(v, place): v, kept for a limit no smaller than that of the policy; of some algorithms
--   count(v, n, till)
--   lasts(v): the instant from which it is fresh, its window, and how much it shows
local rare = {}

-- tagged returns the record of a value of the policy.
function tagged(v, place)
  local tag = read('>I7', numbers, place - 7)
  return pack('>I7', tag - tag % LENGTHS + #v) .. v
end

-- isperiod reports whether v begins with a period that a policy may have.
local function isperiod(v)
  local period = read('>I7', v, 1)
  return period >= 1 and period <= 4503599627370496
end

-- own is the policy's record or log. others is what take has returned, or something else unless the
-- value may be ahead of now.
function admits(algorithm, own, n, key, place, others)
  local o, z, ok, a, b, c, d, e, f, g, h = 1
  --@admits
  return ok, a, b, c, d, e, f, g, h
end

local function charge(algorithm, own, n, key, place, others, _, a, b, c, d, e, f, g, h)
  local o, new, life, state, patch, patches = 1
  --@charge
  return new, life, patch and {0, patch} or patches
end

-- most returns the largest number from lo to hi that a policy admits. It admits lo.
function most(algorithm, own, key, place, lo, hi)
  if admits(algorithm, own, hi, key, place, true) then return hi end -- mostly
  while lo < hi do
    local mid = lo + div(hi - lo + 1, 2)
    if admits(algorithm, own, mid, key, place, true) then lo = mid else hi = mid - 1 end
  end
  return lo
end

-- save returns an error, or nothing.
local function save(number, key, v, changed, list, lives, from, upto)
  local failed, sized = nil, true
  --@save
  return failed
end

--@rare

-- A key that is charged under several numbers of a policy has a state under each of them;
-- step.Variant says why. The value then begins with the byte 255, which no number does; then
-- for each of them, the one used last first: the instant until which it is kept, its length,
-- and its own value.
local SEVERAL, MAXKEPT = 255, 8

-- keep returns v with the instant until which it is kept, but for those beside it.
local function keep(functions, v)
  local fresh, window, shows = functions.lasts(v)
  return {value = v, till = min(max(fresh, now + 2 * window), 9007199254740991), fresh = fresh, window = window, shows = shows}
end

-- several returns the values under each of the numbers.
local function several(functions, v)
  local all, i = {}, 2
  while i <= #v do
    if #all == MAXKEPT or #v < i + 13 then error(ANOTHER, 0) end
    local till, length = read('>I7I7', v, i)
    local x = sub(v, i + 14, i + 13 + length)
    if #x < length or not functions.intact(x) then error(ANOTHER, 0) end
    local _, _, shows = functions.lasts(x)
    all[#all + 1] = {value = x, till = till, shows = shows}
    i = i + 14 + length
  end
  return all
end

-- take is called with a whole value that is not one under the policy's numbers alone, or is
-- ahead of now. It returns the policy's own, or false if it is fresh; and those of others, as
-- from keep. If it is not a value at all, it raises an error.
function take(algorithm, v, place)
  local functions, all = rare[algorithm], {}
  if byte(v, 1) == SEVERAL then
    all = several(functions, v)
  else
    if not functions.intact(v) then error(ANOTHER, 0) end
    local x = keep(functions, v)
    if x.fresh > now then all[1] = x end
  end

  local alike, own, others = sub(numbers, place, place + functions.alike - 1), false, {}
  for _, x in ipairs(all) do
    if x.till > now then
      if sub(x.value, 1, #alike) == alike then own = x.value else others[#others + 1] = x end
    end
  end
  if own and functions.enlarge then own = functions.enlarge(own, place) end
  if not own then
    if #others == 0 then return own, others end
    local most = others[1]
    for _, x in ipairs(others) do
      if x.shows > most.shows then most = x end
    end
    others[MAXKEPT] = nil
    own = functions.adopt(most.value, place)
  end

  -- As step.Redate.
  local _, longest = functions.lasts(own)
  for _, x in ipairs(others) do
    local _, window = functions.lasts(x.value)
    longest = max(longest, window)
  end
  for _, x in ipairs(others) do x.till = min(x.till, now + 2 * longest) end
  return functions.redate(own, place, longest), others
end

-- join returns the whole value, after n units were charged to own, and its life. What is alone
-- lives longer by a quarter: the steps count on that.
function join(algorithm, own, others, n)
  local functions = rare[algorithm]
  local first = keep(functions, own)
  if #others == 0 then return own, first.fresh - now + div(first.window, 4) + 2 end
  local till = first.till
  for _, x in ipairs(others) do till = max(till, x.till) end
  local out = {char(SEVERAL), pack('>I7I7', till, #own), own}
  for _, x in ipairs(others) do
    local v = x.value
    if n > 0 then v = functions.count(v, n, first.fresh) end
    out[#out + 1] = pack('>I7I7', x.till, #v) .. v
  end
  return concat(out), till - now
end

-- records calls f with the tag of each record of a value, without the length, and where it begins
-- and ends.
local function records(v, f)
  local i = 1
  repeat
    local tag = #v >= i + 6 and read('>I7', v, i) or error(ANOTHER, 0)
    local length = tag % LENGTHS
    if #v < i + 6 + length then error(ANOTHER, 0) end
    f(tag - length, i, i + 6 + length)
    i = i + 7 + length
  until i > #v
end

-- counts reports whether the value in a record is not fresh. Of an algorithm that is not known here,
-- as another release may have it, it is taken for one that counts.
local function counts(tag, x)
  local functions = rare[tag / LENGTHS % 8]
  if not functions then return true end
  if byte(x, 1) ~= SEVERAL then
    if not functions.intact(x) then error(ANOTHER, 0) end
    return functions.lasts(x) > now
  end
  for _, kept in ipairs(several(functions, x)) do
    if kept.till > now then return true end
  end
end

-- sorted returns the records of v in the order of the parts that begin at byte from of questions,
-- with an empty one where there is none; then those of other policies that still count: a plan, or
-- another release, may have others. In tests with an instant of their own all stay.
function sorted(v, from, size)
  local found, rest = {}, {}
  records(v, function(tag, i, j)
    if found[tag] then error(ANOTHER, 0) end
    found[tag] = sub(v, i, j)
    rest[#rest + 1] = tag
  end)
  local out = {}
  repeat
    local _, _, form, _, high, low = byte(questions, from, from + 5)
    local tag = read('>I7', numbers, 256 * high + low - 7)
    tag = tag - tag % LENGTHS
    out[#out + 1] = found[tag] or pack('>I7', tag)
    found[tag] = nil
    from = from + size
  until form == LAST
  for _, tag in ipairs(rest) do
    local x = found[tag]
    if x and #x > 7 and (given or counts(tag, sub(x, 8))) then out[#out + 1] = x end
  end
  return concat(out)
end

-- settle gives back, or charges what fits, of each part by itself.
function settle(parts, size, first, last)
  for i = 0, parts - 1 do
    local where = first + size * i
    local algorithm, _, form, number, high, low = byte(questions, where, where + 5)
    local place, key, functions = 256 * high + low, keys[number], rare[algorithm]
    local n, at, actual = read('>I7I7I7', questions, where + 6)
    local v = values[number]
    if v == nil then
      v = form == IN_PARTS and call('GETRANGE', key, 0, BEGINNING - 1) or call('GET', key)
      if v == '' and form == IN_PARTS then v = false end
    elseif v and form == WHOLE and #v == BEGINNING then
      form = IN_PARTS
    end
    local from, upto, own, others = 1, v and #v or 0, v
    if form < WHOLE and v then
      local mine = read('>I7', numbers, place - 7)
      own, from = false, upto + 1
      records(v, function(tag, i, j)
        if tag == mine - mine % LENGTHS then
          from, upto, own = i, j, j >= i + 7 and sub(v, i + 7, j)
        end
      end)
    end
    local function tag(x) return x and form < WHOLE and tagged(x, place) or x end
    if own and admits(algorithm, tag(own), 1, key, place) == nil then
      if form == IN_PARTS then
        v = call('GET', key)
        own, upto = v, #v
      end
      own, others = take(algorithm, own, place)
    end
    local uncovered, fit, new, life, patches = 0, 0
    if not functions.most and actual > 0 then
      -- it counts calls, and the call took place
    elseif actual < n then
      if own then new, life, patches = functions.giveback(own, at, n - actual, not others and key, place) end
    elseif actual > n then
      fit = most(algorithm, tag(own), key, place, 0, min(actual - n, functions.most(place)))
      uncovered = actual - n - fit
      if fit > 0 then
        new, life, patches = charge(algorithm, tag(own), fit, key, place, others or form < IN_PARTS, admits(algorithm, tag(own), fit, key, place, others))
      end
    end
    if life then
      if others then new, life = join(algorithm, new, others, fit) end
      local failed = save(number, key, v, tag(new), not new and patches, life, from, upto)
      if failed then error(failed, 0) end
    end
    out[last + i + 1] = '\3' .. pack('>I7', uncovered)
  end
end
