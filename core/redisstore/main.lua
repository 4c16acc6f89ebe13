-- Answers questions, one after the other, each all or nothing.
--
-- KEYS: the cells of all questions. ARGV[1]: the instant, for tests, or '' for the
-- server's. ARGV[2]: the questions, which are byte strings:
--
--   mode, number of parts, then for each part: index of its policy, n
--   and to settle, in each part also: at, actual
--
-- A question of mode DENY is refused whatever its policies say.
--
-- ARGV[3] and on: the policies: algorithm, count denied, constants.
--
-- The reply is the instant, then for each question: 1 allowed, 0 refused, and for
-- each part 1 or 0 for admitted, and the state; or 2 and an error. Strings follow
-- their length in two bytes.
local PEEK, SETTLE, DENY = 1, 2, 3

local now
if ARGV[1] == '' then
  local t = call('TIME')
  now = t[1] * 1000000 + t[2]
else
  now = tonumber(ARGV[1])
end

local policies, ranged = {}, false
for i = 3, #ARGV do
  local p = ARGV[i]
  local algorithm, denied = byte(p, 1, 2)
  local twin = twins[algorithm]
  local m = {read(twin.format, p, 3)}
  m.twin, m.denied = twin, denied == 1
  m.header = sub(p, 3, 2 + 7 * twin.header)
  if twin.prepare then twin.prepare(m) end
  ranged = ranged or m.ranged
  policies[i - 3] = m
end

-- values holds what was read, by key: a later question sees an earlier one's write.
local values = {}
if #KEYS > 1 and not ranged then
  local got = call('MGET', unpack(KEYS))
  for i = 1, #KEYS do values[KEYS[i]] = got[i] end
end

local function value(m, key)
  local v = values[key]
  if v == nil and not m.ranged then
    v = call('GET', key)
    values[key] = v
  end
  return v
end

-- write returns the value, which is nil if the twin wrote it itself, or nothing.
local function write(key, old, v, life)
  if v == nil then
    values[key] = nil
  else
    if old then
      local ms = px(life, key)
      if ms then call('SET', key, v, 'PX', ms) else call('SET', key, v, 'KEEPTTL') end
    elseif not call('SET', key, v, 'PX', px(life), 'NX') then
      error('the key holds a value of another type') -- MGET does not tell
    end
    values[key] = v
  end
  return v
end

local questions, pos, first = ARGV[2], 1, 1  -- first: the question's first key
local out, last = {pack('>I7', now)}, 1      -- the reply in pieces, and how many
local ms, ns, vs, oks, as, bs = {}, {}, {}, {}, {}, {}

local function answer(mode, parts)
  local allowed = mode ~= DENY
  for i = 1, parts do
    local at, key = pos + 8 * (i - 1), KEYS[first + i - 1]
    local m, n = policies[byte(questions, at)], read('>I7', questions, at + 1)
    local v = value(m, key)
    local ok, a, b = m.twin.admits(m, v, now, n, key)
    ms[i], ns[i], vs[i], oks[i], as[i], bs[i] = m, n, v, ok, a, b
    allowed = allowed and ok
  end
  out[last + 1] = allowed and '\1' or '\0'
  last = last + 1
  for i = 1, parts do
    local m, v, n = ms[i], vs[i], ns[i]
    local twin, key = m.twin, KEYS[first + i - 1]
    if mode == PEEK then
      -- it only looks
    elseif allowed then
      v = write(key, v, twin.charge(m, v, now, n, as[i], bs[i], key))
    elseif m.denied then
      v = write(key, v, twin.refuse(m, v, now, n, as[i], bs[i], key))
    elseif v and twin.adopt then
      local adopted, life = twin.adopt(m, v, now)
      if adopted then v = write(key, v, adopted, life) end
    end
    local view = twin.view and twin.view(m, now, allowed and 0 or n, as[i]) or v or ''
    local length = #view
    out[last + 1] = char(oks[i] and 1 or 0, (length - length % 256) / 256, length % 256)
    out[last + 2] = view
    last = last + 2
  end
end

-- settle gives back, or charges what fits, of each part by itself.
local function settle(parts)
  out[last + 1] = '\1'
  last = last + 1
  for i = 1, parts do
    local place = pos + 22 * (i - 1)
    local m, key = policies[byte(questions, place)], KEYS[first + i - 1]
    local n, at, actual = read('>I7I7I7', questions, place + 1)
    local twin, v, uncovered = m.twin, value(m, key), 0
    local exists = v
    if m.ranged then exists = call('EXISTS', key) == 1 end
    if twin.calls and actual > 0 then
      -- it counts calls, and the call took place
    elseif actual < n then
      if exists then write(key, v, twin.giveback(m, v, now, at, n - actual, key)) end
    elseif actual > n then
      local more = actual - n
      local lo, hi = 0, min(more, m[twin.limit])
      while lo < hi do
        local mid = lo + div(hi - lo + 1, 2)
        if twin.admits(m, v, now, mid, key) then lo = mid else hi = mid - 1 end
      end
      uncovered = more - lo
      if lo > 0 then
        local _, a, b = twin.admits(m, v, now, lo, key)
        write(key, v, twin.charge(m, v, now, lo, a, b, key))
      end
    end
    out[last + 1] = pack('>I7', uncovered)
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
    local code = string.match(err, '%u%u%u+ .*') -- of an error of the server
    if code and sub(code, 1, 9) ~= 'WRONGTYPE' then return {err = code} end -- READONLY, OOM: it concerns all
    for i = before + 1, last do out[i] = nil end -- this question fails alone
    err = sub(err, 1, 200)
    out[before + 1] = '\2' .. char(0, #err) .. err
    last = before + 1
  end
  pos = pos + (mode == SETTLE and 22 or 8) * parts
  first = first + parts
end
return concat(out)
