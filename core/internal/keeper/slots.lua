-- States how many slots of a key an incarnation holds, and takes more if there is room, or
-- gives some up if the key holds more than the limit.
--
--   KEYS[1]  a hash: incarnation -> count:seq
--   ARGV     the incarnation, seq, how many it holds, how many more it wants (if negative,
--            how many it gives up at most), the limit, whether to keep a zero, whether to return all fields, and the
--            incarnations whose fields are to be dropped
--   reply    the outcome, the own field as found, how many were granted (negative:
--            given up), how many the others hold, and their fields: one string
if not KEYS[1] then return '' end -- Check only tries whether it runs
local MOST = 4096 -- fields of others that a reply has at most
local FEW = 8     -- if there are no more fields of others, every reply has them
local LIFE = 25 * 3600 -- of the hash, in seconds: an outage of a day loses nothing
local call, match = redis.call, string.match
local key, id = KEYS[1], ARGV[1]
local seq, held, want, limit = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local keep, listall = ARGV[6] == '1', ARGV[7] == '1'

local function number(value) return tonumber(match(value, '^%d+')) end

local found = call('HGET', key, id)
local count, last = 0, -1
if found then
  count, last = match(found, '^(%d+):(%d+)$')
  count, last = tonumber(count), tonumber(last)
end

-- The fields of the others are needed if they are few, or less is granted than is wanted.
local others, n, fields = 0, 0, {}
local enough = want == 0 and not listall
if not enough and not listall and #ARGV == 7 and seq > last and call('HLEN', key) > FEW + 1 then
  for _, value in ipairs(call('HVALS', key)) do others = others + number(value) end
  others = others - count
  enough = others + held + want <= limit
end
if not enough then
  local drop, all = {}, call('HGETALL', key)
  for i = 8, #ARGV do drop[ARGV[i]] = true end
  others = 0
  for i = 1, #all, 2 do
    if all[i] ~= id and not drop[all[i]] then
      local theirs = number(all[i + 1])
      others, n = others + theirs, n + 1
      if n <= MOST then fields[n] = all[i] .. ':' .. string.format('%.0f', theirs) end
    end
  end
end

local outcome, granted = 'done', 0
if seq < last then
  outcome = 'stale' -- a later statement came first
elseif seq == last then
  outcome, granted = 'same', count - held
  if count > 0 then call('EXPIRE', key, LIFE) end
else
  for i = 8, #ARGV do call('HDEL', key, ARGV[i]) end
  granted = math.max(math.min(math.max(want, 0), limit - others - held), math.min(want, 0))
  count = held + granted
  if count > 0 or keep then
    call('HSET', key, id, string.format('%.0f:%.0f', count, seq))
    call('EXPIRE', key, LIFE)
  elseif found then
    call('HDEL', key, id)
  end
end
if not listall and granted >= want and n > FEW then fields = {} end
return string.format('%s %s %.0f %.0f ', outcome, found or '-', granted, others) .. table.concat(fields, ',')
