-- values has what is known to be stored, by the number of the key: false if nothing is.
local values = {}
if #keys > 1 and usesLogs < 2 then values = call('MGET', unpack(keys)) end

local out, last = {pack('>I7', now)}, 1     -- the reply in pieces, and their number
local after                                 -- where the next question is
local failed                                -- why this one has: an error, or true if it needs rare or is too much
local work = alone == 1 and -math.huge or 0 -- words that were laid out anew, unless there is but one question
local rare                                  -- functions that few questions need

-- fetch reads the value of a cell that is not known, or may be of another type: MGET returns none then.
local function fetch(pos, number, form)
  local v, key = values[number], keys[number]
  if v == false and byte(questions, pos + 9) == 0 then return v end
  if form == 3 then v = try('GETRANGE', key, 0, 483) else v = try('GET', key) end
  if v == '' and form == 3 then v = try('GET', key) end -- none, or an empty one
  if v and v.err then failed = v else values[number] = v end
  return v
end

-- save writes a value, whose bytes from left to right become new; or if skip is set, as many as new has
-- behind so many of these; or of a log, new has parts: behind how many bytes of the value, and which.
-- The value counts until the instant ends, if that is later than before. It expires then at the
-- earliest, and after half as long again at the latest, so that few writes have to renew that.
local function save(number, v, left, right, skip, new, ends)
  if skip then
    left = left + skip
    right = left + #new - 1
  end
  local expires = v and ends and read('>I7', v, 1)
  if v and v == values[number] and #new == right + 1 - left and (not ends or ends <= expires) then
    values[number] = nil
    -- The usual offsets are texts, as to make one of a number takes a server long.
    local offset = left == 22 and '21' or left == 36 and '35' or left == 29 and '28' or left == 8 and '7' or left - 1
    call('SETRANGE', keys[number], offset, new)
    return
  end
  local life -- in milliseconds, if it is renewed
  if not v or ends and ends > expires then
    -- The value says a little less, as a server may pause a script between TIME and what follows.
    expires = ends + (ends - now) * 7 / 16
    expires = expires - expires % 1
    life = (ends - now) * 3 / 2000
    life = math.max(life - life % 1, 0) + 2 -- Redis counts from the beginning of a millisecond
    if ARGV[1] ~= '' then life = 3600000 end -- of a given instant nothing expires
  else
    expires = read('>I7', v, 1)
  end
  if skip == 0 or type(new) == 'table' then -- of a log, whose value v may be the beginning of
    if skip then new = {left - 1, new} end
    values[number] = nil
    for i = 1, #new, 2 do
      if new[i + 1] ~= '' then call('SETRANGE', keys[number], new[i], new[i + 1]) end
    end
    if life then
      call('SETRANGE', keys[number], 0, pack('>I7', expires))
      call('PEXPIRE', keys[number], life)
    end
    return
  end
  new = pack('>I7', expires) .. (v and sub(v, 8, left - 1) .. new .. sub(v, right + 1) or new)
  values[number] = new
  if not v then
    if not call('SET', keys[number], new, 'PX', life, 'NX') then -- MGET returns none for a value of another type
      failed = 'the key holds a value of another kind'
      values[number] = false
    end
  elseif life then
    call('SET', keys[number], new, 'PX', life)
  else
    call('SET', keys[number], new, 'KEEPTTL')
  end
end

-- merge joins what changes of a record, as charge returns it, to what changes of those behind it in the value.
local function merge(v, begin, z, skip, new, ends, changed, from, upto, till)
  if skip then
    begin = begin + skip
    z = begin + #new - 1
  end
  if ends and (not till or ends > till) then till = ends end
  if not changed then return new, begin, z, till end
  return new .. sub(v or '', z + 1, from - 1) .. changed, begin, upto, till
end

-- decide mirrors step.Decide. It asks the cell at byte pos of questions, lets itself decide the cells after
-- it, and then concludes: so all are asked before one is charged, and their states stay in variables
-- meanwhile. piece is where its reply goes, begin where in its value the record is, and v that value,
-- if it is that of the cell before. It returns whether all admit, and how many units more; and of a value
-- with several records, the value, and what changes of those from this one on, as merge does.
local function decide(pos, piece, allowed, granted, begin, v)
  local mode, left, algorithm, denied, form, number, high, low, n = byte(questions, pos, pos + 8)
  local step, place, next = steps[algorithm], 256 * high + low, pos + 10
  if mode > 2 then -- not a cell to decide
    failed = not rare
    return rare and rare.special(pos, piece, mode)
  elseif n == 0 then
    n, next = read('>I7', questions, next), next + 7
  end
  if v == nil then v = values[number] or fetch(pos, number, form) end
  if failed then return end
  local own, at, others, _ = v, begin
  local admitted, z, a, b, c, d, e, f = step.admits(v, begin, n, place, number)
  if admitted == nil or form == 1 and v and #v ~= z then -- LAST, and there are more records
    failed = not rare
    if failed then return end
    v, own, at, others, z, admitted, a, b, c, d, e, f = rare.find(pos, algorithm, form, number, place, v, begin, n)
    if failed then return end
  end
  allowed = allowed and admitted and mode ~= 2 -- REFUSE
  if granted > 0 and allowed then granted = rare.room(step, own, at, n, n + granted, place, number) - n end
  if form == 3 and not others and (mode ~= 1 and allowed or denied == 1) then -- a PEEK shows a refusal
    work = work + step.grows(n + granted, place, a, b, c, d, e)
  end
  local changed, from, upto, till
  if left == 0 then
    last, after = piece + 1, next
    if work > 8192 then failed = true end
  elseif form == 0 then -- MORE
    allowed, granted, v, changed, from, upto, till = decide(next, piece + 2, allowed, granted, z + 1, v)
  else
    allowed, granted = decide(next, piece + 2, allowed, granted, 8)
  end
  if failed then return end

  local new, skip, ends, reply
  if allowed and mode == 0 then -- ALLOW
    if granted > 0 then
      n = n + granted
      admitted, _, a, b, c, d, e, f = step.admits(own, at, n, place, number)
    end
    new, skip, ends, reply = step.charge(own, at, n, place, number, a, b, c, d, e, f)
  elseif not allowed and denied == 1 then
    new, skip, ends, reply = step.refuse(own, at, n, place, number, a, b, c, d, e, f)
    if mode == 1 then new = nil end -- PEEK
  else
    reply = step.reply(own, at, n, place, number, allowed, a, b, c, d, e, f)
  end
  out[piece] = allowed and '\3' or admitted and '\1' or '\0'
  out[piece + 1] = reply
  if others and mode ~= 1 and (new or own) then new, skip, ends = rare.keep(algorithm, form, place, new or own, others, allowed and n or 0) end
  if form == 0 or begin > 8 then
    if new then changed, from, upto, till = merge(v, begin, z, skip, new, ends, changed, from, upto, till) end
    if begin > 8 then return allowed, granted, v, changed, from, upto, till end
    if changed then save(number, v, from, upto, nil, changed, till) end
  elseif new then
    save(number, v, begin, z, skip, new, ends)
  end
  return allowed, granted
end

-- The questions in order, up to one that has failed.
local question = 7 -- where it begins
while question <= #questions do
  local before, done = last, work
  decide(question, before + 1, true, 0, 8)
  if failed then
    last, work = before, done
    break
  end
  question = after
end
if question > #questions then return table.concat(out, '', 1, last) end
