do
  local key = KEYS[@i]
  local v, intact = @value, true
  if v == '' then v = false end
@typed
  if v then
@intact
@grows
  end
  if not intact then return '' end
  values[key] = v
end
