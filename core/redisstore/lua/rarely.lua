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

-- isperiod reports whether v begins with a period that a policy may have.
local function isperiod(v)
  local period = read('>I7', v, 1)
  return period >= 1 and period <= 4503599627370496
end

-- others is what take has returned, or something else unless the value may be ahead of now.
function admits(algorithm, own, n, key, place, others)
  local ok, a, b, c, d, e, f, g, h
  --@admits
  return ok, a, b, c, d, e, f, g, h
end

local function charge(algorithm, own, n, key, place, others, _, a, b, c, d, e, f, g, h)
  local new, life, state, patch
  --@charge
  return new, life
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
local function save(algorithm, cell, key, v, new, life, inparts)
  local failed, patch
  --@save
  return failed
end

--@rare

-- A key that is charged under several numbers of a policy has a state under each of them;
-- step.Kept says why. The value then begins with the byte 255, which no number does; then
-- for each of them, the one used last first: the instant until which it is kept, its length,
-- and its own value.
local SEVERAL, MAXKEPT = 255, 8

-- keep returns v with the instant until which it is kept, but for those beside it.
local function keep(functions, v)
  local fresh, window, shows = functions.lasts(v)
  return {value = v, till = min(max(fresh, now + 2 * window), 9007199254740991), fresh = fresh, window = window, shows = shows}
end

-- take is called with a whole value that is not one under the policy's numbers alone, or is
-- ahead of now. It returns the policy's own, or false if it is fresh; and those of others, as
-- from keep. If it is not a value at all, it raises an error.
function take(algorithm, v, place)
  local functions, all = rare[algorithm], {}
  if byte(v, 1) == SEVERAL then
    local i = 2
    while i <= #v do
      if #all == MAXKEPT or #v < i + 13 then error(ANOTHER, 0) end
      local till, length = read('>I7I7', v, i)
      local x = sub(v, i + 14, i + 13 + length)
      if #x < length or not functions.intact(x) then error(ANOTHER, 0) end
      local _, _, shows = functions.lasts(x)
      all[#all + 1] = {value = x, till = till, shows = shows}
      i = i + 14 + length
    end
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

-- settle gives back, or charges what fits, of each part by itself.
function settle(parts, size, first, last)
  for i = 0, parts - 1 do
    local from = first + size * i
    local algorithm, _, inparts, cell, high, low = byte(questions, from, from + 5)
    local place, key, functions = 256 * high + low, keys[cell], rare[algorithm]
    local n, at, actual = read('>I7I7I7', questions, from + 6)
    local v = values[cell]
    if v == nil then
      v = inparts == 1 and call('GETRANGE', key, 0, BEGINNING - 1) or call('GET', key)
      if v == '' then v = false end
    elseif v and #v == BEGINNING then
      inparts = 1
    end
    local own, others = v
    if v and admits(algorithm, v, 1, key, place) == nil then
      if inparts == 1 then v = call('GET', key) end
      own, others = take(algorithm, v, place)
    end
    local uncovered, new, life = 0
    if not functions.most and actual > 0 then
      -- it counts calls, and the call took place
    elseif actual < n then
      if own then
        new, life = functions.giveback(own, at, n - actual, not others and key, place)
        if others then new, life = join(algorithm, new, others, 0) end
      end
    elseif actual > n then
      local fit = most(algorithm, own, key, place, 0, min(actual - n, functions.most(place)))
      uncovered = actual - n - fit
      if fit > 0 then
        new, life = charge(algorithm, own, fit, key, place, others or inparts == 0, admits(algorithm, own, fit, key, place, true))
        if others then new, life = join(algorithm, new, others, fit) end
      end
    end
    local failed = life and save(algorithm, cell, key, v, new, life, inparts)
    if failed then error(failed, 0) end
    out[last + i + 1] = '\3' .. pack('>I7', uncovered)
  end
end
