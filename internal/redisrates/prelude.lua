-- For servers without the library struct, such as miniredis: numbers of 7 bytes.
local struct = {}
function struct.unpack(format, v, i)
  local out = {}
  i = i or 1
  for k = 1, (#format - 1) / 2 do
    out[k] = 0
    for j = i, i + 6 do out[k] = out[k] * 256 + string.byte(v, j) end
    i = i + 7
  end
  return unpack(out)
end
function struct.pack(format, ...)
  local out = {}
  for k = 1, (#format - 1) / 2 do
    local x, digits = select(k, ...), ''
    for _ = 1, 7 do
      digits = string.char(x % 256) .. digits
      x = math.floor(x / 256)
    end
    out[k] = digits
  end
  return table.concat(out)
end
