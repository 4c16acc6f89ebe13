-- States how many slots of a key an incarnation holds, and takes more if there is room, or
-- gives some up if the key holds more than the limit.
--
--   KEYS[1]  a hash: incarnation -> count:seq, and of one that waits count:seq:seen:since:limit
--   ARGV     the incarnation, seq, how many it holds, how many more it wants (if negative,
--            how many it gives up at most), the limit, whether to keep a zero, whether to return all fields,
--            whether it waits (0: no; 1: if it gets less than it wants; 2: in any case;
--            3: as before), the instant (tests only), and the
--            incarnations whose fields are to be dropped
--   reply    the outcome, the own field as found, how many were granted (negative:
--            given up), how many the others hold, whether it is marked as waiting (2: and the
--            next slot may be its, 3: the one after that, and so on), and the fields of the others:
--            one string
--
-- What one that waits is granted leaves room for others that wait: each may have an equal share
-- of what those that do not wait leave. What is left then, less than one for each, goes in turn: to
-- who has waited for the longest since it last had such a slot. A mark counts for
-- FRESH after it was seen, if its limit leaves room; so who is dead or waits no more keeps
-- nothing from others. Who is not marked is granted all there is.
if not KEYS[1] then return '' end -- Check only tries whether it runs
local MOST = 4096 -- fields of others that a reply has at most
local FEW = 8     -- if there are no more fields of others, every reply has them
local LIFE = 25 * 3600 -- of the hash, in seconds: an outage of a day loses nothing
local FRESH = 500000 -- in microseconds: more than two of the pauses after which who waits asks again
local DROPS = 10 -- where they begin in ARGV
local call, match = redis.call, string.match
local key, id = KEYS[1], ARGV[1]
local seq, held, want, limit = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local keep, listall, waits, now = ARGV[6] == '1', ARGV[7] == '1', tonumber(ARGV[8]), tonumber(ARGV[9])
local asks = (waits == 1 or waits == 2) and want > 0 -- and waits

local own = call('HGET', key, id)
local found, count, last, mark = nil, 0, -1, ''
if own then
  count, last, mark = match(own, '^(%d+):(%d+)(.*)$')
  found = mark == '' and own or count .. ':' .. last
  count, last = tonumber(count), tonumber(last)
end

local others, n, fields, waiting = 0, 0, {}, {}
local function add(value)
  local theirs = tonumber(match(value, '^%d+'))
  others, n = others + theirs, n + 1
  if asks then
    local seen, since, most = match(value, '^%d+:%d+:(%d+):(%d+):(%d+)$')
    if seen then table.insert(waiting, {theirs, tonumber(seen), tonumber(since), tonumber(most)}) end
  end
  return theirs
end

-- The fields of the others are needed if they are few, or less is granted than is wanted.
local enough = want == 0 and not listall
if not enough and not listall and #ARGV < DROPS and seq > last and call('HLEN', key) > FEW + 1 then
  for _, value in ipairs(call('HVALS', key)) do
    if value == own then own = nil else add(value) end
  end
  enough = others + held + want <= limit
  if not enough then others, n, waiting = 0, 0, {} end
end
if not enough then
  local drop, all = {}, call('HGETALL', key)
  for i = DROPS, #ARGV do drop[ARGV[i]] = true end
  for i = 1, #all, 2 do
    if all[i] ~= id and not drop[all[i]] then
      local theirs = add(all[i + 1])
      if n <= MOST then fields[n] = all[i] .. ':' .. string.format('%.0f', theirs) end
    end
  end
end

-- What one that waits is granted, of what there is; and for which of the next it is due, or 0. It is
-- defined only if there are others: Redis runs all definitions each time.
local fair = asks and n > 0 and function(granted)
  local function most(x) return math.max(x, 0) end
  if not now then
    local t = call('TIME')
    now = t[1] * 1000000 + t[2]
  end
  local function fresh(seen) return math.abs(now - seen) < FRESH end
  local seen, since = match(mark, '^:(%d+):(%d+):')
  since = seen and fresh(tonumber(seen)) and tonumber(since) or now
  local idle, rivals = others, {}
  for _, w in ipairs(waiting) do
    if fresh(w[2]) and (w[4] >= limit or others + held < w[4]) then
      table.insert(rivals, w)
      idle = idle - w[1]
    end
  end
  local due, all = 0, most(limit - idle)
  if #rivals > 0 then
    local share = math.floor(all / (#rivals + 1))
    local extra, free, before = all - share * (#rivals + 1), limit - others - held - most(share - held), 0
    for _, w in ipairs(rivals) do
      free = free - most(share - w[1])
      if w[1] <= share and w[3] < since then before = before + 1 end
    end
    local mine = most(share - held)
    if held <= share and free > before then mine = mine + 1 end
    granted = math.min(granted, mine)
    local total = held + granted
    if granted < want and total < share then
      due = 1
    elseif granted < want and total == share and extra > 0 then
      due = most(before - extra + 1) + 1
    end
    if total > share then since = now end
  end
  mark = ''
  if granted < want or waits == 2 then mark = string.format(':%.0f:%.0f:%.0f', now, since, limit) end
  return granted, due
end

local outcome, granted, due = 'done', 0, 0
if seq < last then
  outcome = 'stale' -- a later statement came first
elseif seq == last then
  outcome, granted = 'same', count - held
  if count > 0 then call('EXPIRE', key, LIFE) end
else
  for i = DROPS, #ARGV do call('HDEL', key, ARGV[i]) end
  granted = math.max(math.min(math.max(want, 0), limit - others - held), math.min(want, 0))
  if fair then
    granted, due = fair(granted)
  elseif waits ~= 3 then
    mark = ''
  end
  count = held + granted
  if count > 0 or keep or mark ~= '' then
    call('HSET', key, id, string.format('%.0f:%.0f', count, seq) .. mark)
    call('EXPIRE', key, LIFE)
  elseif found then
    call('HDEL', key, id)
  end
end
if not listall and granted >= want and n > FEW then fields = {} end
local marked = mark == '' and 0 or 1 + due
return string.format('%s %s %.0f %.0f %d ', outcome, found or '-', granted, others, marked) .. table.concat(fields, ',')
