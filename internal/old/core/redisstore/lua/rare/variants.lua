-- Mirrors variant.go. A key that is charged under several parameters of a policy has a state under each of
-- them. The record, or log, then begins with the byte 255, which no parameter does; then for each of
-- them, the one used last first: the instant until which it is kept, its length, and the state.
local SEVERAL, MAXKEPT = 255, 8

-- kept mirrors keep in variant.go, but for the states beside it.
local function kept(step, v)
  local fresh, window, shows = step.lasts(v)
  return {value = v, till = math.min(math.max(fresh, now + 2 * window), 9007199254740991), fresh = fresh, window = window, shows = shows}
end

-- variants returns the states of a key.
local function variants(step, v)
  if string.byte(v, 1) ~= SEVERAL then
    if not step.intact(v) then error(ANOTHER, 0) end
    local x = kept(step, v)
    return x.fresh > now and {x} or {}
  end
  local all, i = {}, 2
  while i <= #v do
    if #all == MAXKEPT or #v < i + 13 then error(ANOTHER, 0) end
    local ends, length = read('>I7I7', v, i)
    local x = sub(v, i + 14, i + 13 + length)
    if #x < length or not step.intact(x) then error(ANOTHER, 0) end
    local _, _, shows = step.lasts(x)
    all[#all + 1] = {value = x, till = ends, shows = shows}
    i = i + 14 + length
  end
  return all
end

-- take mirrors take and redate in variant.go. It returns the policy's own state, or false if there is none; and
-- the others.
local function take(step, v, place)
  local alike, own, others = sub(numbers, place + 7, place + 6 + step.alike), false, {}
  for _, x in ipairs(variants(step, v)) do
    if x.till > now then
      if sub(x.value, 1, #alike) == alike then own = x.value else others[#others + 1] = x end
    end
  end
  if own and step.larger then own = step.larger(own, place) end
  if not own then
    if #others == 0 then return own, others end
    local most = others[1]
    for _, x in ipairs(others) do
      if x.shows > most.shows then most = x end
    end
    others[MAXKEPT] = nil
    own = step.adopt(most.value, place)
  end

  local _, window, _, reach = step.lasts(own)
  local longest = reach or window
  for _, x in ipairs(others) do
    _, window, _, reach = step.lasts(x.value)
    longest = math.max(longest, reach or window)
  end
  for _, x in ipairs(others) do x.till = math.min(x.till, now + 2 * longest) end
  return step.redate(own, place, longest), others
end

-- keep mirrors Cell.keep and count in variant.go: it returns the whole record, after n units were charged to own, and until when it
-- counts, as charge does.
function rare.keep(algorithm, form, place, own, others, n)
  local step = steps[algorithm]
  if form < 2 then own = sub(own, 8) end
  local first = kept(step, own)
  local ends = first.fresh
  if #others > 0 then
    ends = first.till
    for _, x in ipairs(others) do ends = math.max(ends, x.till) end
    local all = {string.char(SEVERAL), pack('>I7I7', ends, #own), own}
    for _, x in ipairs(others) do
      local v = x.value
      if n > 0 then v = step.count(v, n, first.fresh) end
      all[#all + 1] = pack('>I7I7', x.till, #v) .. v
    end
    own = table.concat(all)
  end
  if form < 2 then own = tagged(own, place) end
  return own, nil, nil, ends
end
