-- Answers questions, one after the other, each all or nothing.
--
-- KEYS: the cells of all questions. ARGV[1]: the instant, for tests, or '' for the
-- server's. ARGV[2]: the questions, which are byte strings:
--
--   mode, number of parts, then for each part: index of its policy, n
--   and to settle, in each part also: at, actual
--
-- ARGV[3] and on: the policies: algorithm, count denied, constants.
--
-- The reply is the instant, then for each question: 1 allowed, 0 refused, and for
-- each part 1 or 0 for admitted, and the state; or 2 and an error. Strings follow
-- their length in two bytes.
local ASK, PEEK, SETTLE = 0, 1, 2

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
  local m = {words(p, 3, (#p - 2) / 7)}
  m.twin, m.denied = twin, denied == 1
  m.header = sub(p, 3, 2 + 7 * twin.header)
  m.ranged = twin.ranged and twin.ranged(m)
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
  if m.ranged then return nil end
  local v = values[key]
  if v == nil then
    v = call('GET', key)
    values[key] = v
  end
  return v
end

local function write(key, v, life)
  if v == nil then -- the twin wrote a part of it
    values[key] = nil
    return
  end
  if values[key] then
    call('SET', key, v, 'PX', px(life, key))
  elseif not call('SET', key, v, 'PX', px(life), 'NX') then
    error('the key holds a value of another type') -- MGET does not tell
  end
  values[key] = v
end

local function text(s)
  local n = #s
  return char(div(n, 256), n % 256) .. s
end

local questions, pos, first = ARGV[2], 1, 1 -- first: the question's first key

local function answer(mode, parts)
  local ms, ns, oks, as, bs = {}, {}, {}, {}, {}
  local allowed = true
  for i = 1, parts do
    local at = pos + 8 * (i - 1)
    local m, n, key = policies[byte(questions, at)], words(questions, at + 1, 1), KEYS[first + i - 1]
    ms[i], ns[i] = m, n
    oks[i], as[i], bs[i] = m.twin.admits(m, value(m, key), now, n, key)
    allowed = allowed and oks[i]
  end
  local out = allowed and '\1' or '\0'
  for i = 1, parts do
    local m, n, key = ms[i], ns[i], KEYS[first + i - 1]
    local twin = m.twin
    if mode ~= PEEK then
      if allowed then
        write(key, twin.charge(m, value(m, key), now, n, as[i], bs[i], key))
      elseif m.denied then
        write(key, twin.refuse(m, value(m, key), now, n, as[i], bs[i], key))
      end
    end
    local v = value(m, key)
    local view = twin.view and twin.view(m, v, now, allowed and 0 or n, key) or v or ''
    out = out .. (oks[i] and '\1' or '\0') .. text(view)
  end
  return out
end

-- settle gives back, or charges what fits, of each part by itself.
local function settle(parts)
  local out = '\1'
  for i = 1, parts do
    local place = pos + 22 * (i - 1)
    local m, key = policies[byte(questions, place)], KEYS[first + i - 1]
    local n, at, actual = words(questions, place + 1, 3)
    local twin, v, uncovered = m.twin, value(m, key), 0
    local exists = v
    if m.ranged then exists = call('EXISTS', key) == 1 end
    if twin.calls and actual > 0 then
      -- it counts calls, and the call took place
    elseif actual < n then
      if exists then write(key, twin.giveback(m, v, now, at, n - actual, key)) end
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
        write(key, twin.charge(m, v, now, lo, a, b, key))
      end
    end
    out = out .. pack(uncovered)
  end
  return out
end

local replies = {pack(now)}
while pos < #questions do
  local mode, parts = byte(questions, pos, pos + 1)
  pos = pos + 2
  local ok, reply
  if mode == SETTLE then
    ok, reply = pcall(settle, parts)
  else
    ok, reply = pcall(answer, mode, parts)
  end
  if not ok then -- this question fails alone
    if type(reply) == 'table' then reply = reply.err end
    reply = '\2' .. text(sub(tostring(reply), 1, 200))
  end
  replies[#replies + 1] = reply
  pos = pos + (mode == SETTLE and 22 or 8) * parts
  first = first + parts
end
return table.concat(replies)
