-- Decides questions, one after the other. A question charges all of its cells, or none. A cell is one policy for one key.
-- Its state is one value, whose name says everything that the bytes depend on: see policy.go.
--
-- KEYS: the value of each cell. ARGV[1]: the cells. ARGV[2]: the instant in microseconds, in tests.
--
-- A cell is five bytes: its algorithm; 1 if nothing is charged; 1 if more cells of the question follow; a register, from 1
-- to 8; and 0 if its numbers are those of the last cell with this register. Else eight numbers of 7 bytes follow, and the
-- units of a level in digits, of which the byte is 1 more than their number. The numbers, and the values, are:
--
--   1 level    of buckets, intervals, and windows of the clock and of calendars
--              numbers: a time, and how many ticks it has (their ratio); the step; units (cost); limit (full); how far a
--              level may be ahead of the clock (ahead); grid of lives; 1 if denied units count (counted)
--              value: what the clock shows when nothing is used any more, in decimal digits
--              The clock advances by the step with each tick. A bucket has short ticks, so its level falls steadily. A
--              window of the clock is one tick, so its level falls at once. Of a calendar, whose borders the script does not
--              know, the numbers are: 0; the number of one of two windows; the step; units; limit; the three borders
--   2 window   of sliding windows, and of fixed ones that begin with the first unit, or whose limit is very large
--              numbers: units; limit; length of a sub-window; how many count in full; 1 if one more counts by the part
--              of it that is inside, 2 if in full; 1 if the first begins now; up to how many denied units count
--              value: start of the newest sub-window; sum of those that count in full; the counts, newest first
--   3 log      numbers: units; limit; period; grid of lives; 1 if denied units count
--              value: the instants, oldest first
--
-- A value is written anew, with a life, if it is not there, or if its state ends in another cell of the grid than
-- before. It lives until that cell ends. So most charges change the value in place.
--
-- The reply is the instant, and for each cell a byte: 1 if it admits the units, and 2 if the question is allowed. Then comes
-- the value before, in 16 digits if it is a level; or 4 is added if there was none: then what is asked fits, as core asks for
-- no more than the limit. Of a log it is how many units count, and the instants that must expire until one more fits, until
-- all are free, and until the units fit; and if denied units count, the same again after that. The byte 8 alone is a value
-- that no such cell has: the question changes nothing, unless only a change in place finds that out.

local byte, format, read, pack, call, get = string.byte, string.format, struct.unpack, struct.pack, redis.call, redis.pcall
local floor, max, min, type, unpack = math.floor, math.max, math.min, type, unpack
local KEYS, cells, now = KEYS, ARGV[1], ARGV[2]

local time = not now and call('TIME')
now = time and time[1] * 1000000 + time[2] or tonumber(now)

local registers = {nil, nil, nil, nil, nil, nil, nil, nil} -- the numbers of each
local out, place, offset = {pack('>I7', now), nil, nil}, 2, 1
local unpacked, ratio, step, cost, full, ahead, grid, counted, digits, ends -- the numbers of the latest level
local fits, n = true, 0 -- whether all cells of a question so far admit it, or nil: it fails; and how many wait for the last
local key1, algorithm1, admitted1, onAdmitted1, onRefused1, life1, answer1 -- the last of these: most questions have two cells
local waiting -- the others
for i = 1, #KEYS do
  local key, algorithm, ask, more, register, fresh = KEYS[i], byte(cells, offset, offset + 4)
  offset = offset + 5
  local numbers = registers[register]
  if fresh > 0 then
    numbers = {read('>I7I7I7I7I7I7I7I7', cells, offset)}
    registers[register], offset = numbers, offset + 55 + fresh -- 56 bytes, and fresh - 1 digits
    if algorithm == 1 then -- the ratio: of a bucket, ticks in a microsecond; of a window, microseconds in its tick
      if numbers[3] == 1 then
        numbers[1] = numbers[2] / numbers[1]
      elseif numbers[1] == 0 then
        -- A calendar: as if its windows were so long that now is in the middle of the one that it is in. If now is in none
        -- of the two, the tenth number is false, and else when a value may end: a day after its window.
        local _, number, tickStep, _, _, first, border, third = unpack(numbers)
        local known = first <= now and now < third
        if now >= border then number, border = number + 1, third end
        numbers[1], numbers[6], numbers[7], numbers[8] = now / (number + 0.5), tickStep - 1, tickStep, 0
        numbers[10] = known and border + 86400000000
      end
      numbers[9] = string.sub(cells, offset - fresh + 1, offset - 1)
    end
  end
  local v = get('GET', key) -- a string, false, or {err = ...}, of which # is 0: no algorithm finds that sound
  -- What is written if the question is allowed, and if it is refused; false is nothing. With a life, in milliseconds,
  -- it is the value. Without one it is what changes, and the value lives as long as before.
  local admitted, onAdmitted, onRefused, life, answer, sound = false, false, false, false, v, true

  if algorithm == 1 then
    if numbers ~= unpacked then
      unpacked, ratio, step, cost, full = numbers, numbers[1], numbers[3], numbers[4], numbers[5]
      ahead, grid, counted, digits, ends = numbers[6], numbers[7], numbers[8], numbers[9], numbers[10]
    end
    local ticks, used, kept = step == 1 and now * ratio or now / ratio, 0, false
    local clock = (ticks - ticks % 1) * step
    if ends == false then v = {err = 'WRONGTYPE'} end -- of a calendar: now is in a window that the client does not know
    -- Kept: the level ends in the same cell of the grid with the charge as without it. Then INCRBY changes the value in
    -- place, and fails by itself if that is no level.
    if v then
      used = (#v < 17 and tonumber(v) or 0) - clock
      if used < 0 then
        used = 0
      elseif used > ahead and (step == 1 or used >= 2 * step) then -- the clock was ahead: nothing is left as of now
        used = max(full, used % step)
        onRefused = format('%d', clock + used)
      else
        if used > ahead then clock, used = clock + step, used - step end -- a window that has begun has begun
        kept = counted == 0 and (clock + used) % grid + cost < grid
      end
      if not kept then
        sound = #v > 0 and #v < 17 and string.find(v, '^[1-9]%d*$') and tonumber(v) <= 9007199254740991
      end
      if #v < 16 and sound then answer = string.rep('0', 16 - #v) .. v end
    end
    admitted = used + cost <= full
    if kept then
      onAdmitted = admitted and digits
    elseif admitted or onRefused or counted == 1 then
      local last = ends or step == 1 and (clock + used + cost + grid) / ratio or (clock + used + cost + grid) / step * ratio
      life = format('%d', floor((last - now) / 1000) + 1000)
      if admitted then onAdmitted = format('%d', clock + used + cost) end
      if counted == 1 then onRefused = format('%d', clock + max(used, min(used + cost, full))) end
    end

  elseif algorithm == 2 then
    local units, limit, span, inner, trail, first, most = unpack(numbers)
    local counts = trail > 0 and inner + 1 or inner
    local start, sum, count, old, behind = now, 0, 0, 0, nil -- behind: the counts that are not the newest
    if first == 0 then start = now - now % span end
    if v then
      local from, total, newest = 1, 0, 0
      if #v == 14 + 7 * counts then from, total, newest = read('>I7I7I7', v) end
      local age = now - from
      local aligned = first == 1 or from % span == 0
      if from == 1 or not aligned or newest > total or total > 9007199254740991 or from > 9007199254740991 then
        sound = false
      elseif age < -counts * span then -- the clock was ahead: nothing is left as of now
        if trail > 0 then total = total + read('>I7', v, 8 + 7 * counts) end
        sum = max(total, limit)
        count = sum
        onRefused = pack('>I7I7I7', start, sum, count) .. string.rep('\0', 7 * counts - 7)
      elseif age < span then
        start, sum, count, behind = from, total, newest, false
        if trail > 0 then old = read('>I7', v, 15 + 7 * inner) end
      elseif age < counts * span then
        local passed = floor(age / span)
        start, sum = from + passed * span, total
        for k = inner - passed, inner - 1 do sum = sum - read('>I7', v, 15 + 7 * k) end
        sound = sum >= 0
        old = read('>I7', v, 15 + 7 * (inner - passed))
        behind = string.rep('\0\0\0\0\0\0\0', passed - 1) .. string.sub(v, 15, 14 + 7 * (counts - passed))
      end
    end
    local room, inside = limit - sum - units, span
    if trail == 1 and now > start then inside = start + span - now end
    admitted = room >= 0 and old * inside <= room * span
    local added = most > 0 and max(min(units, most - count, 9007199254740991 - sum), 0)
    if behind == false then -- the sum and the newest count change
      if admitted then onAdmitted = pack('>I7I7', sum + units, count + units) end
      if added then onRefused = pack('>I7I7', sum + added, count + added) end
    elseif admitted or added or onRefused then
      behind = behind or string.rep('\0', 7 * counts - 7)
      life = format('%d', floor((start + counts * span - now) / 1000) + 1000)
      if admitted then onAdmitted = pack('>I7I7I7', start, sum + units, count + units) .. behind end
      if added then onRefused = pack('>I7I7I7', start, sum + added, count + added) .. behind end
    end

  elseif algorithm == 3 then
    local units, limit, period, grid, counted = unpack(numbers)
    -- summarize returns what the reply says of a log.
    local function summarize(log)
      local live, next, last, wait = #log / 7, 0, 0, 0
      if live > 0 then
        local over = live + units - limit
        next, last = read('>I7', log, 7 * max(live - limit, 0) + 1), read('>I7', log, #log - 6)
        if over > 0 and over <= live then wait = read('>I7', log, 7 * over - 6) end
      end
      return pack('>I7I7I7I7', live, next, last, wait)
    end
    local live, gone, latest, kept = 0, 0, now, false
    if v then
      live = #v / 7
      if live > 0 and live % 1 == 0 and live <= 1024 then latest = read('>I7', v, #v - 6) else sound = false end
      if sound and latest <= 9007199254740991 then
        kept = latest - latest % grid > now - grid and counted == 0
        latest = max(latest, now)
        local cut = latest - period -- what is not later has expired
        if read('>I7', v) <= cut then -- gallop from the oldest, then bisect
          local high = 2
          gone, kept = 1, false
          while high <= live and read('>I7', v, 7 * high - 6) <= cut do gone, high = high, 2 * high end
          if high > live then high = live + 1 end
          while high - gone > 1 do
            local middle = floor((gone + high) / 2)
            if read('>I7', v, 7 * middle - 6) <= cut then gone = middle else high = middle end
          end
          live = live - gone
        end
        if latest - now > period then -- the clock was ahead: nothing is left as of now
          live, gone, latest, kept = max(live, limit), 0, now, false
          v = string.rep(pack('>I7', now), live)
          onRefused = v
        end
      else
        live, sound = 0, false
      end
    end
    admitted = units <= limit - live
    local log = live == 0 and '' or gone == 0 and v or string.sub(v, 7 * gone + 1)
    local added = (admitted or counted == 1) and string.rep(pack('>I7', latest), min(units, 1024))
    if kept then
      onAdmitted = admitted and added
    elseif added or onRefused then
      life = format('%d', floor((latest - now + period + grid) / 1000) + 1000)
      if admitted then onAdmitted = log .. added end
      if counted == 1 then onRefused = string.sub(log .. added, -7168) end
    end
    if v then
      answer = summarize(log)
      if counted == 1 then answer = answer .. summarize(onRefused) end
    end

  else
    error('headgate: no algorithm ' .. algorithm)
  end

  if not sound then
    if v.err and not string.find(v.err, 'WRONGTYPE', 1, true) then return v end -- the server is at fault
    fits = nil
  elseif fits then
    fits = admitted
  end
  if ask == 1 then onAdmitted, onRefused = false, false end
  if more == 1 then
    if n > 0 then
      waiting = waiting or {}
      local k = 7 * n
      waiting[k - 6], waiting[k - 5], waiting[k - 4], waiting[k - 3], waiting[k - 2], waiting[k - 1], waiting[k] =
        key1, algorithm1, admitted1, onAdmitted1, onRefused1, life1, answer1
    end
    key1, algorithm1, admitted1, onAdmitted1, onRefused1, life1, answer1 =
      key, algorithm, admitted, onAdmitted, onRefused, life, answer
    n = n + 1
  else
    -- All cells of the question were asked. The last is in key, algorithm and so on, that before it in key1, algorithm1
    -- and so on, and others in waiting: so they are written from the last to the first.
    local index = place + 2 * n
    place = index + 2
    repeat
      local change, failed = onRefused, fits == nil
      if fits then change = onAdmitted end
      if not change or failed then -- nothing
      elseif life then
        call('SET', key, change, 'PX', life)
      elseif algorithm == 1 then
        local reply = get('INCRBY', key, change)
        if type(reply) == 'table' then
          if not string.find(reply.err, 'not an integer', 1, true) then return reply end
          failed = true
        end
      elseif algorithm == 2 then
        call('SETRANGE', key, '7', change)
      elseif algorithm == 3 then
        call('APPEND', key, change)
      else
        error('headgate: no algorithm ' .. algorithm)
      end
      out[index] = failed and '\8' or answer and (fits and '\3' or admitted and '\1' or '\0') or fits and '\7' or '\5'
      out[index + 1] = not failed and answer or ''
      n, index = n - 1, index - 2
      if n >= 0 then
        key, algorithm, admitted, onAdmitted, onRefused, life, answer =
          key1, algorithm1, admitted1, onAdmitted1, onRefused1, life1, answer1
      end
      if n > 0 then
        key1, algorithm1, admitted1, onAdmitted1, onRefused1, life1, answer1 = unpack(waiting, 7 * n - 6, 7 * n)
      end
    until n < 0
    n, fits = 0, true
  end
end
return table.concat(out)
