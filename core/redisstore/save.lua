-- save stores a new value, if the twin has not, for half as much again as it counts, so
-- that few writes have to renew that. No life is ever shortened, for a limiter of the
-- same name with other numbers may need the longer one; 0 is what it has. In a test
-- nothing expires.
local function save(key, v, value, life)
  local saved, least = true, max((life + 1999 - (life + 999) % 1000) / 1000, 1)
  if told then least = 3600000 end
  local most = least + (least - least % 2) / 2
  if v and life == 0 then
    if value then call('SET', key, value, 'KEEPTTL') end
  elseif not v then
    saved = call('SET', key, value, 'PX', most, 'NX') -- not if it has another type, which MGET does not tell
  elseif call('PTTL', key) < least then
    if value then call('SET', key, value, 'PX', most) else call('PEXPIRE', key, most) end
  elseif value then
    call('SET', key, value, 'KEEPTTL')
  end
  return saved
end
