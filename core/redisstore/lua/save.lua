-- The bytes of v from byte from to byte upto become changed; it may be of another length only if
-- sized is set. Or, of a log, list has patches. lives is its life.
--
-- A new value is kept for half as much again as it counts, so that few writes have to renew
-- that. A life is never shortened, as others of the records, or a limiter of the same name with
-- other numbers, may need the longer one; a life of 0 means the present one. In tests with an
-- instant of their own nothing expires.
-- An error, such as READONLY or OOM, is that of the whole call.
local new, done
if v and lives == 0 and not sized then
  done = try('SETRANGE', key, OFFSETS[from] or from - 1, changed)
else
  local least = lives > 0 and (lives + 1999 - (lives + 999) % 1000) / 1000 or 1
  if given then least = 3600000 end
  local most = least + (least - least % 2) / 2
  local renew = v and lives > 0 and call('PTTL', key) < least
  if list then
    for j = 1, #list, 2 do
      if list[j + 1] ~= '' then done = try('SETRANGE', key, list[j], list[j + 1]) end
    end
    if renew then call('PEXPIRE', key, most) end
  elseif not v then -- not over a value of another type, which MGET returns as none
    new = changed
    done = try('SET', key, new, 'PX', most, 'NX')
    if not done then failed, new = ANOTHER, nil end
  elseif sized or renew and #v ~= BEGINNING then -- of a long log, v may be no more than that
    new = sub(v, 1, from - 1) .. changed .. sub(v, upto + 1)
    if renew then
      done = try('SET', key, new, 'PX', most)
    else
      done = try('SET', key, new, 'KEEPTTL')
    end
  else
    done = try('SETRANGE', key, OFFSETS[from] or from - 1, changed)
    if renew then call('PEXPIRE', key, most) end
  end
end
if type(done) == 'table' and done.err then return done end
values[number] = new
