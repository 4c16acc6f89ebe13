-- save stores a new value, unless the twin has, and keeps it for half as much again as it
-- counts, so that few writes have to renew that. It never shortens a life, as a limiter of
-- the same name with other numbers may need the longer one; a life of 0 means the present
-- one. In tests with an instant of their own nothing expires.
local function save(key, v, value, life)
  --@save
  local saved, least = true, max((life + 1999 - (life + 999) % 1000) / 1000, 1)
  if given then least = 3600000 end
  local most = least + (least - least % 2) / 2
  if v and life == 0 then
    if value then call('SET', key, value, 'KEEPTTL') end
  elseif not v then
    saved = call('SET', key, value, 'PX', most, 'NX') -- not over a value of another type, which MGET returns as none
  elseif call('PTTL', key) < least then
    if value then call('SET', key, value, 'PX', most) else call('PEXPIRE', key, most) end
  elseif value then
    call('SET', key, value, 'KEEPTTL')
  end
  --@end
  return saved
end
