-- Deletes the KEYS; but of the first, if ARGV[1] has the beginnings of tags, of 4 bytes each, only
-- the records with these: others may be of other plans. It is a script also because a
-- ClusterClient splits DEL into commands of its own, which it may retry.
local keys, ids, rest, i = KEYS, ARGV[1], {}, 8
local v = ids ~= '' and redis.pcall('GET', keys[1])
if type(v) == 'string' then
  while #v >= i + 6 do
    local id, a, b, c = string.sub(v, i, i + 3), string.byte(v, i + 4, i + 6)
    local after, mine = i + 7 + a * 65536 + b * 256 + c, false
    for j = 1, #ids, 4 do mine = mine or string.sub(ids, j, j + 3) == id end
    if not mine then rest[#rest + 1] = string.sub(v, i, after - 1) end
    i = after
  end
  if i == #v + 1 and #rest > 0 then
    redis.call('SET', table.remove(keys, 1), string.sub(v, 1, 7) .. table.concat(rest), 'KEEPTTL')
  end
end
return #keys > 0 and redis.call('DEL', unpack(keys)) or 0
