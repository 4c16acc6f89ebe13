-- A new value, unless it was written, is kept for half as much again as it counts, so that few
-- writes have to renew that. A life is never shortened, as a limiter of the same name with
-- other numbers may need the longer one; a life of 0 means the present one. In tests with an
-- instant of their own nothing expires.
-- An error, such as READONLY or OOM, is that of the whole call.
local done
if v and life == 0 then
  if patch then
    done = try('SETRANGE', key, PATCHED[algorithm], patch)
  elseif new then
    done = try('SET', key, new, 'KEEPTTL')
  end
else
  local least = life > 0 and (life + 1999 - (life + 999) % 1000) / 1000 or 1
  if given then least = 3600000 end
  local most = least + (least - least % 2) / 2
  if not v then -- not over a value of another type, which MGET returns as none
    done = try('SET', key, new, 'PX', most, 'NX')
    if not done then failed = ANOTHER end
  elseif call('PTTL', key) >= least then
    if new then done = try('SET', key, new, 'KEEPTTL') end
  elseif new then
    done = try('SET', key, new, 'PX', most)
  else
    call('PEXPIRE', key, most)
  end
end
if type(done) == 'table' and done.err then return done end
if failed or inparts == 1 then values[cell] = nil else values[cell] = new end
