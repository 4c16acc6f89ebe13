-- values has what is known to be stored, by the number of the key: false if nothing is.
local values = {nil}
if #KEYS > 1 and usesLogs < 2 then values = redis.call('MGET', unpack(KEYS)) end

local out, pieces = {pack('>I7', now), nil, nil}, 1 -- the reply, and how many pieces it has
local after                                 -- where the next question is
local work = alone == 1 and -math.huge or 0 -- words that were laid out anew, unless there is but one question
local rare                                  -- functions that few questions need
-- Why the question has failed: an error; or 'rare' if it needs rare, which is not defined yet; or
-- 'too much' if it lays out too much anew for this call.
local failed

-- fetch reads the value of a cell that is not known, or may be of another type: MGET returns none then.
local function fetch(pos, number, form)
  local v, key = values[number], KEYS[number]
  if v == false and string.byte(questions, pos + 9) == 0 then return v end
  if form == 3 then v = redis.pcall('GETRANGE', key, 0, 490) else v = redis.pcall('GET', key) end
  if v == '' and form == 3 then v = redis.pcall('GET', key) end -- none, or an empty one
  if v and v.err then failed = v else values[number] = v end
  return v
end

-- save writes a value, whose bytes from left to right become new. Of a log, which is a value of its own,
-- new may have parts instead: behind how many bytes of the value, and which. The value counts until
-- the instant ends, if that is later than before. It expires later by half of that time, at least a second, and
-- of a bucket a sixteenth of its period: a life costs more than a charge, so that most charges shall renew none.
local function save(number, form, v, left, right, new, ends, step, place)
  local key, expires = KEYS[number], v and ends and read('>I7', v, 1)
  if v and #new == right + 1 - left and v == values[number] and (not ends or ends <= expires) then
    values[number] = nil
    -- The usual offsets are texts, as to make one of a number takes a server long.
    local offset = left == 22 and '21' or left == 43 and '42' or left == 29 and '28' or left == 8 and '7' or left - 1
    redis.call('SETRANGE', key, offset, new)
    return
  end
  local life -- in milliseconds, if it is renewed
  if not v or ends and ends > expires then
    -- The value says a little less, as a server may pause a script between TIME and what follows.
    local more = math.max(ends - now, 2000000, step == steps[1] and read('>I7', numbers, place + 14) / 8 or 0) / 2
    expires = ends + more * 7 / 8
    expires = expires - expires % 1
    life = (ends - now + more) / 1000
    life = math.max(life - life % 1, 0) + 2 -- Redis counts from the beginning of a millisecond
    if ARGV[1] ~= '' then life = 3600000 end -- of a given instant nothing expires
    life = string.format('%d', life)
  else
    expires = read('>I7', v, 1)
  end
  local parts = type(new) == 'table'
  if parts or form > 1 and v and #new == right + 1 - left then -- of a log, of whose value v may be the beginning
    if not parts then new = {left - 1, new} end
    values[number] = nil
    for i = 1, #new, 2 do
      if new[i + 1] ~= '' then redis.call('SETRANGE', key, new[i], new[i + 1]) end
    end
    if life then
      redis.call('SETRANGE', key, 0, pack('>I7', expires))
      redis.call('PEXPIRE', key, life)
    end
    return
  end
  new = pack('>I7', expires) .. (v and v:sub(8, left - 1) .. new .. v:sub(right + 1) or new)
  values[number] = new
  if not v then
    if not redis.call('SET', key, new, 'PX', life, 'NX') then -- MGET returns none for a value of another type
      failed = 'the key holds a value of another kind'
      values[number] = false
    end
  elseif life then
    redis.call('SET', key, new, 'PX', life)
  else
    redis.call('SET', key, new, 'KEEPTTL')
  end
end

-- join joins what changes of a record to what changes behind it in its value, both as charge returns it.
local function join(v, new, left, right, ends, behind, from, upto, till)
  if not new then return behind, from, upto, till end
  if till and (not ends or till > ends) then ends = till end
  return new .. (v and v:sub(right + 1, from - 1) or '') .. behind, left, upto, ends
end

-- decide mirrors step.Decide. It asks the cell at byte pos of questions, lets itself decide the cells after
-- it, and then concludes: so all are asked before one is charged, and their states stay in variables
-- meanwhile. The last cell is charged first, and each is read before it is kept: that makes no
-- difference, as the states are different ones, and what is kept is not what is read.
--
-- piece is where the cell's reply goes, begin the byte of its value v at which the record begins, and z
-- the one at which it ends. v is given if it is that of the cell before. own is what has the record, from
-- byte at on: the value, or what find has made. used is the number of units that count anyway, or nil.
-- What changes of a record is new, from byte left to right of the value, until the instant ends; behind,
-- from, upto and till are that of the records behind it.
--
-- A record of other parameters, or of several variants, has another tag, length or first word: find looks for
-- the state. Records behind the last are of policies that this limiter does not have.
--
-- It returns whether all admit, and how many units more; and of a value with several records, the value,
-- and what changes of those from this one on, as charge does.
local function decide(pos, piece, allowed, granted, begin, v)
  local mode, more, algorithm, denied, form, number, high, low, n = string.byte(questions, pos, pos + 8)
  local step, place, next, used, anyway = steps[algorithm], 256 * high + low, pos + 10
  if mode > 2 then -- the units count anyway, or it only checks, or is not a cell to decide
    failed = not rare and 'rare'
    if failed or mode < 8 then return rare and rare.special(pos, piece, mode) end
    mode, n, next, used, anyway = rare.asked(pos, mode, algorithm, n, place)
  elseif n == 0 then
    n, next = read('>I7', questions, next), next + 7
  end
  if v == nil then v = values[number] or fetch(pos, number, form) end
  if failed then return end
  local own, at, others, _ = v, begin
  local admitted, z, a, b, c, d, e, f = step.admits(v, begin, n, place, number)
  if admitted == nil or form == 1 and v and #v ~= z then -- LAST, and there are more records
    failed = not rare and 'rare'
    if failed then return end
    v, own, at, others, z, admitted, a, b, c, d, e, f = rare.find(pos, algorithm, form, number, place, v, begin, n)
    if failed then return end
  end
  if used and n < used then admitted = false end -- so many never fit, and the step was asked for fewer
  allowed = allowed and (admitted or anyway) and mode ~= 2 -- REFUSE
  if granted > 0 and allowed then granted = rare.room(step, own, at, n, n + granted, place, number) - n end
  if form == 3 and not others and (used or allowed and mode ~= 1 or not allowed and denied == 1) then -- a PEEK shows a refusal
    work = work + step.grows(n + granted, place, a, b, c, d, e)
  end
  local behind, from, upto, till, new, left, right, ends, reply
  if more == 0 then
    pieces, after = piece + 1, next
    if work > 8192 then failed = 'too much' end
  elseif form == 0 then -- MORE
    allowed, granted, v, behind, from, upto, till = decide(next, piece + 2, allowed, granted, z + 1, v)
  else
    allowed, granted = decide(next, piece + 2, allowed, granted, 8)
  end
  if failed then return end
  if used then
    n, new, left, right, ends, reply = rare.apart(step, own, at, n, place, number, used, mode, admitted)
  elseif allowed and mode == 0 then -- ALLOW
    if granted > 0 then
      n = n + granted
      admitted, _, a, b, c, d, e, f = step.admits(own, at, n, place, number)
    end
    new, left, right, ends, reply = step.charge(own, at, n, place, number, a, b, c, d, e, f)
  elseif not allowed and denied == 1 then
    new, left, right, ends, reply = step.refuse(own, at, n, place, number, a, b, c, d, e, f)
    if mode == 1 then new = nil end -- PEEK
  else
    reply = step.reply(own, at, n, place, number, allowed, a, b, c, d, e, f)
  end
  out[piece] = allowed and (admitted and '\3' or '\2') or admitted and '\1' or '\0'
  out[piece + 1] = reply
  if others and mode ~= 1 and (new or own) then
    new, left, right, ends = rare.keep(algorithm, form, place, new or own, others, (used or allowed) and n or 0)
  end
  if behind then new, left, right, ends = join(v, new, left, right or z, ends, behind, from, upto, till) end
  if begin > 8 then return allowed, granted, v, new, left or begin, right or z, ends end
  if new then save(number, form, v, left or begin, right or z, new, ends, step, place) end
  return allowed, granted
end

-- The questions in order, up to one that has failed.
local question = 7 -- where it begins
while question <= #questions do
  local before, done = pieces, work
  decide(question, before + 1, true, 0, 8)
  if failed then
    pieces, work = before, done
    break
  end
  question = after
end
if question > #questions then return table.concat(out, '', 1, pieces) end
