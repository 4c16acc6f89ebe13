do
  local key, value, life, state = KEYS[@i]
  local v = values[key]
  if v == nil then v = @value end -- it is not known after a write
@admits
  allowed = allowed and ok
@parts
  local converted = life
  if allowed then
@charge
@refuse
  end
  if life then
    if life == 0 then life = converted or 0 end
@save
    if saved then values[key] = @known else failed = true end
  end
  if not life then
@state
  end
  out[2 * (@i) - 1] = ok and (allowed and '\7' or '\5') or '\4'
  if not state then
    out[2 * (@i) - 1] = ok and (allowed and '\3' or '\1') or '\0'
  end
  out[2 * (@i)] = state or ''
end
