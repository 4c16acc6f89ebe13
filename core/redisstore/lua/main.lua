--@helpers

local out, last = {pack('>I7', now)}, 1 -- the reply in pieces, and their number
local words = 0                         -- that were laid out anew

-- values has what is known to be stored, by cell.
local keys, values = KEYS, {}
local inpart = find(used, '\2', 1, true) -- a value may be the beginning of a long log
if #keys > 1 and not inpart then values = call('MGET', unpack(keys)) end

local PEEK, SETTLE, DENY, EXTRA = 1, 2, 3, 4
local pos = #used + 1 -- where the next question is
local missing         -- whether it needs functions that are not defined yet; then it begins again
local admits, most, take, join, settle

repeat
  if missing then
    missing = false
    --@rarely
  end

  while pos < #questions and not missing do
    -- All parts of a question decide before one is written.
    local mode, parts, size, algorithm, denied, inparts, cell, high, low = byte(questions, pos, pos + 8)
    local first, after, extra = pos + 3, pos + 3 + size * parts, nil
    if mode >= EXTRA then
      mode, extra, after = mode - EXTRA, read('>I7', questions, after), after + 7
      missing = not most
    end
    local allowed, failed, before = mode ~= DENY, nil, nil
    local grown, kept = 0, 0 -- the words that are laid out if it is allowed, and if not
    local place, key, n, v, own, others, ok, a, b, c, d, e, f, g, h -- of a part
    if mode == SETTLE then
      if settle then
        local done, err = pcall(settle, parts, size, first, last)
        if not done then failed = err end
      else
        missing = true
      end
    end
    local asked = (mode == SETTLE or missing) and 0 or parts
    local charged = 0 -- units beyond n: in the second round, the extra ones that all parts admit
    for round = 1, extra and 2 or 1 do
      for i = 0, asked - 1 do
        if i > 0 then before = {before, algorithm, denied, inparts, cell, place, key, n, v, own, others, ok, a, b, c, d, e, f, g, h} end
        if i > 0 or round > 1 then
          algorithm, denied, inparts, cell, high, low = byte(questions, first + size * i, first + size * i + 5)
        end
        place, key, n = 256 * high + low, keys[cell], 1 + charged
        if size > 6 then n = read('>I7', questions, first + size * i + 6) + charged end
        v = values[cell]
        if v == nil then
          if inparts == 1 then v = try('GETRANGE', key, 0, BEGINNING - 1) else v = try('GET', key) end
          if v == '' and inparts == 1 then v = false end
          if type(v) == 'table' then failed = v break end
          values[cell] = v
        elseif inpart and v and #v == BEGINNING then
          inparts = 1 -- as another plan may have read no more
        end
        if parts > 1 then
          local is = not v and try('GET', key) -- not a value: of another type, or empty
          if is then failed = type(is) == 'table' and is or ANOTHER break end
          out[last + 2 * i + 1], out[last + 2 * i + 2] = '', '' -- the list grows at its end
        end
        own, others, ok = v, nil, nil
        --@admits
        if ok == nil then
          if not take then missing = true break end
          if inparts == 1 then v = call('GET', key) end
          local done
          done, own, others = pcall(take, algorithm, v, place)
          if not done then failed = own break end
          ok, a, b, c, d, e, f, g, h = admits(algorithm, own, n, key, place, others)
          if ok == nil then failed = ANOTHER break end
          local more = div(max(#v, own and #own or 0), 7)
          grown, kept = grown + more, kept + more
        elseif inparts == 1 then
          local more = 0
          if mode ~= PEEK then
            --@grows
          end
          grown = grown + more
          if denied == 1 then
            if mode == PEEK then -- it is laid out for nothing
              --@size
            end
            kept = kept + more
          end
        end
        allowed = allowed and ok
        if extra and ok and round == 1 then extra = most(algorithm, own, key, place, n, n + extra) - n end
      end
      if missing or failed or not allowed then
        extra = nil
        break
      elseif extra and round == 1 then
        charged, before, grown, kept = extra, nil, 0, 0
      end
    end

    if grown + kept > 0 and not failed and not missing then
      local more = allowed and grown or kept
      if words + more > MAXWORDS and #questions > #used + after - pos then
        failed = {words = more}
      else
        words = words + more
      end
    end

    if not failed and not missing then
      for i = asked - 1, 0, -1 do
        local new, life, state, patch
        if allowed and mode == PEEK then
          n = 0
        elseif allowed then
          --@charge
        elseif denied == 1 then
          if mode == PEEK and inparts == 1 and own and not others then own = call('GET', key) end -- what is whole is not written
          --@refuse
          if mode == PEEK then new, life = nil, nil end -- only the state is as Allow would answer it
        end
        if others and mode ~= PEEK and (life or own) then new, life = join(algorithm, new or own, others, allowed and n or 0) end
        if life then
          --@save
        end
        if not state then
          --@state
        end
        local piece = last + 2 * i + 1
        if state then
          out[piece], out[piece + 1] = ok and (allowed and '\7' or '\5') or '\4', state
        else
          out[piece], out[piece + 1] = ok and (allowed and '\3' or '\1') or '\0', ''
        end
        if i > 0 then
          before, algorithm, denied, inparts, cell, place, key, n, v, own, others, ok, a, b, c, d, e, f, g, h = unpack(before, 1, 20)
        end
      end
    end

    if not missing then
      local pieces = parts + asked
      if extra then out[last + 1] = out[last + 1] .. pack('>I7', extra) end
      if failed then
        for i = #out, last + 1, -1 do out[i] = nil end
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
      end
      pos, last = after, last + pieces
    end
  end
until not missing
return concat(out)
