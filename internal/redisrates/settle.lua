-- Corrects charges, each by itself. KEYS, ARGV and the values are those of decide.lua. A cell is its algorithm, and ten
-- numbers of 7 bytes:
--
--   1 level    a time (span), and how many ticks it has; the step; what the clock showed at the charge (charged); by how
--              much to lower the level; by how much to raise it; limit (full); up to how far ahead of the clock it goes
--              (ahead); grid of lives; the only level that is lowered, or 0. Of a calendar: 0; the number of one of two
--              windows; four as above; limit; three borders
--   2 window   units to give back; units to count; when they were charged; limit; length of a sub-window; how many count
--              in full; 1 if one more counts at all; 1 if the first begins now
--   3 log      units to give back; units to count; when they were charged; limit; period; grid of lives
--
-- The reply is the instant, and for each cell a byte: 0, and the value before; 4 if there was none; or 8 if it is one that no
-- such cell has. Of a log it is how many units counted before, and what decide.lua says of it after that, about one unit.

local byte, sub, rep, format, find = string.byte, string.sub, string.rep, string.format, string.find
local read, pack, call, get = struct.unpack, struct.pack, redis.call, redis.pcall
local floor, max, min = math.floor, math.max, math.min
local KEYS, cells, now = KEYS, ARGV[1], ARGV[2]

local time = not now and call('TIME')
now = time and time[1] * 1000000 + time[2] or tonumber(now)

local function set(key, value, ends)
  call('SET', key, value, 'PX', format('%d', floor((ends - now) / 1000) + 1000))
end

local out = {pack('>I7', now)}
for i = 1, #KEYS do
  local key, v, sound = KEYS[i], get('GET', KEYS[i]), true
  local algorithm, answer = byte(cells, 71 * i - 70), v

  if algorithm == 1 then
    local span, ticks, step, charged, lower, raise, full, ahead, grid, only =
      read('>I7I7I7I7I7I7I7I7I7I7', cells, 71 * i - 69)
    local rate = step == 1 and ticks / span -- of a bucket: ticks in a microsecond
    local ends = false -- of a calendar: of its window, as in decide.lua
    if span == 0 then -- then ahead, grid and only are borders
      if now < ahead or now >= only then v = {err = 'WRONGTYPE'} end
      if now >= grid then ticks, grid = ticks + 1, only end
      span, ends, ahead, only = now / (ticks + 0.5), grid, step - 1, 0
    end
    local clock = rate and floor(now * rate) or floor(now / span) * step
    local used, beyond, counts = 0, false, false -- counts: the value is of a window that is now, or that has begun
    if v then
      sound = #v > 0 and #v < 17 and find(v, '^[1-9]%d*$') and tonumber(v) <= 9007199254740991
      used = sound and v - clock or 0
      if not rate and used >= step and used < 2 * step then clock, used = clock + step, used - step end
      counts, used = sound and not rate and used >= 0, max(used, 0)
      beyond = used > ahead
      if beyond then used = max(full, used % step) end
      if sound then answer = rep('0', 16 - #v) .. v end
      if only > 0 and (beyond or sound and v - only ~= 0) then lower = 0 end -- another call was the last
    end
    if not rate and charged > clock then lower = 0 end -- of a window that has not begun: the clock has gone back
    lower = min(max(lower - max(clock - charged, 0), 0), used) -- less what has come back since
    local after = raise > 0 and max(used, min(used + raise, ahead)) or used - lower
    if not sound or after == used and not beyond then -- nothing
    elseif after == 0 and (rate or clock == 0) then -- of other windows, it must be known that they have begun
      call('DEL', key)
    elseif not beyond and (counts or after < used) then
      call('INCRBY', key, format('%d', after - used))
    else
      local last = rate and (clock + after + grid) / rate or (clock + after + grid) / step * span
      set(key, format('%d', clock + after), ends and ends + 86400000000 or last)
    end

  elseif algorithm == 2 then
    local back, more, charged, limit, span, inner, trail, first = read('>I7I7I7I7I7I7I7I7', cells, 71 * i - 69)
    local counts = inner + trail
    local start, list, changed = first == 1 and now or now - now % span, {}, more > 0
    for k = 0, counts - 1 do list[k] = 0 end
    if v then
      local from = #v == 14 + 7 * counts and read('>I7', v) or 1
      local passed = max(floor((now - from) / span), 0)
      local held = 0
      if from ~= 1 then
        for k = 0, inner - 1 do held = held + read('>I7', v, 15 + 7 * k) end
      end
      local aligned = first == 1 or from % span == 0
      if from == 1 or not aligned or held ~= read('>I7', v, 8) or max(from, held) > 9007199254740991 then
        sound = false
      elseif now - from < -counts * span then -- the clock was ahead: nothing is left as of now
        for k = 0, counts - 1 do list[0] = list[0] + read('>I7', v, 15 + 7 * k) end
        list[0], changed = max(list[0], limit), true
      elseif passed < counts then
        start = from + passed * span
        for k = passed, counts - 1 do list[k] = read('>I7', v, 15 + 7 * (k - passed)) end
      end
      local charge = (start - charged + charged % span) / span -- which sub-window was charged
      if first == 1 then charge = charged >= start and charged < start + span and 0 or -1 end
      if back > 0 and charge >= 0 and charge < counts and list[charge] > 0 then
        list[charge], changed = max(list[charge] - back, 0), true
      end
    end
    local sum, all, words = 0, 0, {}
    for k = 1, inner - 1 do sum = sum + list[k] end
    list[0] = max(list[0], min(list[0] + more, 9007199254740991 - sum))
    for k = 0, counts - 1 do all, words[k + 1] = all + list[k], pack('>I7', list[k]) end
    if not sound or not changed then -- nothing
    elseif all == 0 and (counts > 1 or first == 1) then -- of a window of the clock, it must be known that it has begun
      call('DEL', key)
    else
      set(key, pack('>I7I7', start, sum + list[0]) .. table.concat(words), start + counts * span)
    end

  elseif algorithm == 3 then
    local back, more, charged, limit, period, grid = read('>I7I7I7I7I7I7', cells, 71 * i - 69)
    local log, latest, changed = '', now, false
    if v then
      sound = #v > 0 and #v % 7 == 0 and #v <= 7168 and read('>I7', v, #v - 6) <= 9007199254740991
      if sound then
        local gone = 0
        latest = max(latest, read('>I7', v, #v - 6))
        while 7 * gone < #v and read('>I7', v, 7 * gone + 1) <= latest - period do gone = gone + 1 end
        log = sub(v, 7 * gone + 1)
        if latest - now > period then -- the clock was ahead: nothing is left as of now
          log, latest, changed = rep(pack('>I7', now), max(#log / 7, limit)), now, true
        end
      end
    end
    answer = pack('>I7', #log / 7)
    if back > 0 and latest - charged < period then
      changed = changed or log ~= ''
      log = sub(log, 7 * back + 1)
    elseif more > 0 then
      log, changed = sub(log .. rep(pack('>I7', latest), min(more, 1024)), -7168), true
    end
    if not sound or not changed then -- nothing
    elseif log == '' then
      call('DEL', key)
    else
      set(key, log, latest + period + grid)
    end
    local live = #log / 7
    local next, last, wait = 0, 0, 0
    if live > 0 then
      next, last = read('>I7', log, 7 * max(live - limit, 0) + 1), read('>I7', log, #log - 6)
      if live >= limit then wait = next end
    end
    answer = answer .. pack('>I7I7I7I7', live, next, last, wait)

  else
    error('headgate: no algorithm ' .. algorithm)
  end

  if not sound and v.err and not find(v.err, 'WRONGTYPE', 1, true) then return v end -- the server is at fault
  out[2 * i] = not sound and '\8' or answer and '\0' or '\4'
  out[2 * i + 1] = sound and answer or ''
end
return table.concat(out)
