-- Answers questions in order, each all or nothing.
--
-- KEYS: the cells of all questions. ARGV[1]: the instant, for tests, or '' for the
-- server's. ARGV[2]: the questions, which are byte strings:
--
--   mode, number of parts, then for each part: index of its policy, n
--   and to settle, in each part also: at, actual
--
-- A question of mode DENY is refused whatever its policies say.
--
-- ARGV[3] and on: the policies.
--
-- The reply is the instant, then for each part of each question a byte: 1 if the policy
-- admits it, 2 if the question is allowed, 4 if the state follows; and for a settlement
-- the units that found no room. Or, for a whole question, 8 and an error: its length in
-- two bytes, and the text. Or 16 and a number of words: to lay out so many anew is too
-- much for this call, which has other questions; nothing was written for this one, and it
-- is to be sent again.
local PEEK, SETTLE, DENY = 1, 2, 3

local ANOTHER = 'the key holds a value of another kind'

local policies, ranged = {}, false
for i = 3, #ARGV do
  local p = ARGV[i]
  local m = twins[byte(p, 1)](p)
  m.denied = byte(p, 2) % 2 == 1
  ranged = ranged or m.ranged
  policies[i - 3] = m
end

-- values holds what was read, by key, so that a question sees the writes of earlier ones.
local values = {}
if #KEYS > 1 and not ranged then
  local got = call('MGET', unpack(KEYS))
  for i = 1, #KEYS do values[KEYS[i]] = got[i] end
end

local function value(m, key)
  local v = values[key]
  if v == nil then
    if m.ranged then
      v = call('GETRANGE', key, 0, m.ranged - 1)
      if v == '' then v = false end
    else
      v = call('GET', key)
    end
    values[key] = v
  end
  if v and not m.intact(v) then error(ANOTHER, 0) end
  return v
end

local function write(m, key, v, value, life)
  if life then
    if not save(key, v, value, life) then error(ANOTHER, 0) end
    values[key] = nil
    if not m.ranged then values[key] = value end
  end
end

local questions, pos, first = ARGV[2], 1, 1  -- first: the question's first key
local out, last = {pack('>I7', now)}, 1      -- the reply in pieces, and their number
local words = 0                              -- that were laid out anew
local ms, ns, vs, found = {}, {}, {}, {}     -- of the parts; found: what admits returned

local function answer(mode, parts)
  local allowed = mode ~= DENY
  for i = 1, parts do
    local at, key = pos + 8 * (i - 1), KEYS[first + i - 1]
    local m, n = policies[byte(questions, at)], read('>I7', questions, at + 1)
    local v = value(m, key)
    if parts > 1 and not v and call('GET', key) then error(ANOTHER, 0) end -- of another type, or empty
    ms[i], ns[i], vs[i], found[i] = m, n, v, {m.admits(v, n, key)}
    allowed = allowed and found[i][1]
  end
  local before = words
  for i = 1, parts do
    local m = ms[i]
    if m.ranged and mode ~= PEEK and (allowed or m.denied) then
      words = words + m.grows(vs[i], ns[i], nil, unpack(found[i], 5, 8))
    end
  end
  if words > MAXWORDS and #questions > 2 + 8 * parts then
    out[last + 1] = '\16' .. pack('>I7', words - before)
    words, last = before, last + 1
    return
  end
  for i = 1, parts do
    local m, n, v, key = ms[i], ns[i], vs[i], KEYS[first + i - 1]
    local ok, new, life, state, a, b, c, d, e = unpack(found[i], 1, 9)
    if mode == PEEK then
      if allowed then n = 0 end
    elseif allowed or m.denied then
      local converted = life
      new, life, state = (allowed and m.charge or m.refuse)(v, n, key, a, b, c, d, e)
      if life == 0 then life = converted or 0 end
      write(m, key, v, new, life)
    else
      write(m, key, v, new, life)
    end
    if not life then
      if m.state then
        state = m.state(v, n, key, a, b, c, d, e)
      elseif v then
        state = sub(v, #m.header + 1)
      end
    end
    out[last + 1] = char((ok and 1 or 0) + (allowed and 2 or 0) + (state and 4 or 0))
    out[last + 2] = state or ''
    last = last + 2
  end
end

-- settle gives back, or charges what fits, of each part by itself.
local function settle(parts)
  for i = 1, parts do
    local place = pos + 22 * (i - 1)
    local m, key = policies[byte(questions, place)], KEYS[first + i - 1]
    local n, at, actual = read('>I7I7I7', questions, place + 1)
    local v, uncovered = value(m, key), 0
    if m.calls and actual > 0 then
      -- it counts calls, and the call took place
    elseif actual < n then
      if v then write(m, key, v, m.giveback(v, at, n - actual, key)) end
    elseif actual > n then
      local more = actual - n
      local lo, hi = 0, min(more, m.limit)
      while lo < hi do
        local mid = lo + div(hi - lo + 1, 2)
        if m.admits(v, mid, key) then lo = mid else hi = mid - 1 end
      end
      uncovered = more - lo
      if lo > 0 then
        local _, _, converted, _, a, b, c, d, e = m.admits(v, lo, key)
        local new, life = m.charge(v, lo, key, a, b, c, d, e)
        if life == 0 then life = converted or 0 end
        write(m, key, v, new, life)
      end
    end
    out[last + 1] = '\3' .. pack('>I7', uncovered)
    last = last + 1
  end
end

while pos < #questions do
  local mode, parts = byte(questions, pos, pos + 1)
  pos = pos + 2
  local before = last
  local ok, err
  if mode == SETTLE then
    ok, err = pcall(settle, parts)
  else
    ok, err = pcall(answer, mode, parts)
  end
  if not ok then
    if type(err) == 'table' then err = err.err end
    err = tostring(err)
    local text, code = string.match(err, '((%u%u%u+) .*)') -- an error of the server
    if code and code ~= 'WRONGTYPE' and code ~= 'ERR' then return {err = text} end -- such as READONLY or OOM: all questions fail
    for i = before + 1, last do out[i] = nil end -- this question fails alone
    err = sub(err, 1, 200)
    out[before + 1] = '\8' .. char(0, #err) .. err
    last = before + 1
  end
  pos = pos + (mode == SETTLE and 22 or 8) * parts
  first = first + parts
end
return concat(out)
