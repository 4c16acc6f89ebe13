--@helpers

local out, last = {pack('>I7', now)}, 1 -- the reply in pieces, and their number
local words = 0                         -- that were laid out anew

-- values has what is known to be stored, by the number of the key.
local keys, values = KEYS, {}
local inpart = find(used, '\2', 1, true) -- a value may be the beginning of a long log
if #keys > 1 and not inpart then values = call('MGET', unpack(keys)) end

local PEEK, SETTLE, DENY, EXTRA = 1, 2, 3, 4
local MORE, LAST, WHOLE, IN_PARTS = 0, 1, 2, 3
local pos = #used + 1 -- where the next question is
local missing         -- whether it needs functions that are not defined yet; then it begins again
local admits, most, take, join, tagged, sorted, settle

-- Assignments are one for each variable, as several at once take as many instructions more.
repeat
  if missing then
    missing = false
    --@rarely
  end

  while pos < #questions and not missing do
    -- Each part decides, and works out what it changes. Nothing is written before all admit. If one
    -- does not, the question begins again, refused.
    local mode, parts, size, apart, algorithm, denied, form, number, high, low = byte(questions, pos, pos + 9)
    local first, asked, pieces, allowed = pos + 4, parts, 2 * parts, true
    local after = first + size * parts
    local failed, extra, trying, waiting, over -- trying is how many units more the parts so far admit
    local i, charged, grown = 0, 0, 0          -- the part; extra units; words that are laid out
    if mode > PEEK then
      if mode >= EXTRA then
        mode = mode - EXTRA
        trying = read('>I7', questions, after)
        after = after + 7
        missing = not most
      end
      if mode == SETTLE then
        asked = 0
        pieces = parts
        missing = not settle
        if settle then
          local done, err = pcall(settle, parts, size, first, last)
          if not done then failed = err end
        end
      elseif mode == DENY then
        allowed = false
        trying = nil
      end
      if missing then asked = 0 end
    end

    while i < asked do -- a value
      local key, v, start, begin, lives = keys[number], values[number], i, 1, 0
      local list, changed, from, upto, sized, ordered -- what changes, as save wants it; whether it is sorted
      if v == nil then
        if form == IN_PARTS then v = try('GETRANGE', key, 0, BEGINNING - 1) else v = try('GET', key) end
        if v == '' and form == IN_PARTS then v = false end
        if type(v) == 'table' then failed = v else values[number] = v end
      elseif inpart and form == WHOLE and v and #v == BEGINNING then
        form = IN_PARTS -- as another plan may have read no more
      end
      if apart == 1 and not v then
        local is = try('GET', key) -- not a value: of another type, or empty
        if is then failed = type(is) == 'table' and is or ANOTHER end
      end
      if failed then
        i = asked
        break
      end

      repeat -- a part that is about it
        local place, n, own, o = 256 * high + low, 1 + charged, v, begin
        local others, ok, z, a, b, c, d, e, f, g, h
        if size > 6 then n = read('>I7', questions, first + size * i + 6) + charged end
        --@admits
        if ok == nil or form == LAST and v and #v ~= z and not ordered then
          missing = not take
          local done, x = not missing, v
          if done and form < WHOLE then
            if not ordered then
              done, x = pcall(sorted, v, first + size * start, size)
              if done then
                sized = x ~= v
                own = x
                v = x
                ordered = true
              end
            end
            if done and ok == nil then
              z = begin + 6 + read('>I7', v, begin) % LENGTHS
              x = z > begin + 6 and sub(v, begin + 7, z)
            end
          elseif done and form == IN_PARTS then
            x = call('GET', key)
            v = x
          end
          if done and ok == nil then
            own = false
            if x then
              done, own, others = pcall(take, algorithm, x, place)
              if done and own and form < WHOLE then own = tagged(own, place) end
              x = own
            end
            if done then
              o = 1
              ok, a, b, c, d, e, f, g, h = admits(algorithm, own, n, key, place, others)
              done = ok ~= nil
              x = ANOTHER
              grown = grown + div(max(#v, own and #own or 0), 7)
            end
          end
          if not done then
            if not missing then failed = x end
            i = asked
            break
          end
        end

        if trying then
          if ok then
            if v and own == v and form < WHOLE then own = sub(v, begin, z) end
            trying = most(algorithm, own, key, place, n, n + trying) - n
          end
          if not ok or i == asked - 1 then -- begin, with what all admit, or without
            allowed = ok
            extra = ok and trying or nil
            charged = extra or 0
            trying = nil
            waiting = nil
            grown = 0
            i = 0
            break
          end
        elseif allowed and not ok and i > 0 then -- begin, refused
          allowed = false
          extra = nil
          waiting = nil
          over = nil
          grown = 0
          i = 0
          break
        else
          local new, life, state, patch, patches
          if not ok then allowed = false end
          if form == IN_PARTS and not others and (allowed and mode ~= PEEK or not allowed and denied == 1) then
            local more = 0
            --@grows
            grown = grown + more
          end
          if grown > 0 then over = words + grown > MAXWORDS and #questions > #used + after - pos end
          if allowed then
            if mode == PEEK then
              n = 0
            elseif not over then
              --@charge
            end
          elseif denied == 1 and not over then
            --@refuse
            if mode == PEEK then life = nil end -- only the state is as Allow would answer it
          end
          if others and mode ~= PEEK and not over and (life or own) then
            if not new then new = form < WHOLE and sub(own, 8) or own end
            new, life = join(algorithm, new, others, allowed and n or 0)
            if form < WHOLE then new = tagged(new, place) end
            patch = nil
            patches = nil
          elseif new and form < WHOLE then
            new = sub(numbers, place - 7, place - 1) .. new
          end
          if life then
            local left, right = begin, z
            if patch then
              left = begin + PATCHED[algorithm]
              right = left + #patch - 1
              new = patch
            elseif form >= WHOLE then
              right = v and #v or 0
              sized = true
              list = patches
            elseif #new ~= z + 1 - begin then
              sized = true
            end
            if from then
              changed = changed .. sub(v or '', upto + 1, left - 1) .. new
            else
              from = left
              changed = new
            end
            upto = right
            if life > lives then lives = life end
          end
          if not state then
            --@state
          end
          local piece = last + 2 * i
          if not state then
            out[piece + 1] = ok and (allowed and '\3' or '\1') or '\0'
            out[piece + 2] = ''
          else
            out[piece + 1] = ok and (allowed and '\7' or '\5') or '\4'
            out[piece + 2] = state
          end
        end
        i = i + 1
        if form ~= MORE then break end
        begin = z + 1
        local where = first + size * i
        algorithm, denied, form, number, high, low = byte(questions, where, where + 5)
      until false

      if i < asked then -- another value, or all again
        if from and i > 0 then waiting = {waiting, key, number, v, list, changed, lives, from, upto, sized} end
        local where = first + size * i
        algorithm, denied, form, number, high, low = byte(questions, where, where + 5)
      elseif over and not failed and not missing then
        failed = {words = grown}
      elseif not failed and not missing then
        words = words + grown
        repeat
          if from then
            --@save
          end
          from = nil
          if waiting then waiting, key, number, v, list, changed, lives, from, upto, sized = unpack(waiting, 1, 10) end
        until not from
      end
    end

    if not missing then
      if failed then
        for j = #out, last + 1, -1 do out[j] = nil end
        pieces = 1
        if type(failed) == 'table' and failed.words then
          out[last + 1] = '\16' .. pack('>I7', failed.words)
        else
          local err = type(failed) == 'table' and failed.err or tostring(failed)
          local text, code = string.match(err, '((%u%u%u+) .*)') -- an error of the server
          if code and code ~= 'WRONGTYPE' and code ~= 'ERR' then return {err = text} end -- such as READONLY or OOM: all questions fail
          err = sub(err, 1, 200)
          out[last + 1] = '\8' .. char(0, #err) .. err
        end
      elseif extra then
        out[last + 1] = out[last + 1] .. pack('>I7', extra)
      end
      pos = after
      last = last + pieces
    end
  end
until not missing
return concat(out)
