-- What the twins in core/step build on.
--
-- Numbers are stored as words of 7 bytes, big endian: every integer up to 2^53-1.
local sub, byte, char, min, max = string.sub, string.byte, string.char, math.min, math.max
local call = redis.call

-- words(v, i, n) returns the n words from byte i on, and perhaps a value more;
-- pack(...) joins words.
local words, pack
local struct = rawget(_G, 'struct') -- a library that not every server has
if struct then
  local read, write, rep = struct.unpack, struct.pack, string.rep
  function words(v, i, n) return read('>' .. rep('I7', n), v, i) end
  function pack(...) return write('>' .. rep('I7', select('#', ...)), ...) end
else
  function words(v, i, n)
    local out = {}
    for k = 1, n do
      local a, b, c, d, e, f, g = byte(v, i, i + 6)
      out[k] = (((((a * 256 + b) * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g
      i = i + 7
    end
    return unpack(out)
  end
  function pack(...)
    local out, digits = {}, {}
    for k = 1, select('#', ...) do
      local x = select(k, ...)
      for i = 7, 1, -1 do
        local digit = x % 256
        digits[i] = char(digit)
        x = (x - digit) / 256
      end
      out[k] = table.concat(digits)
    end
    return table.concat(out)
  end
end

local function div(a, b) return (a - a % b) / b end -- exact where a/b would round

-- px is the time to live, in milliseconds, of a value with so many microseconds
-- of life: never shorter, never zero. A key that exists keeps what it has left if
-- that is more, for under other numbers its value may count for longer. In a test,
-- whose clock is not the server's, nothing expires.
local function px(life, key)
  if ARGV[1] ~= '' then return 3600000 end
  return max(div(life + 999, 1000), key and call('PTTL', key) or 1, 1)
end

-- twins[algorithm] has the functions of one algorithm. m holds its policy's
-- constants, as Step.Constants lists them, and m.header, the numbers that every
-- value begins with; v is the stored value, or false.
--
--   admits(m, v, now, n, key): whether n units fit, then what charge and refuse
--     want to know of the state. It writes nothing.
--   charge(m, v, now, n, a, b, key), refuse(...): the new value, and its life in
--     microseconds.
--   giveback(m, v, now, at, n, key): the same, without n of the units that were
--     charged at the instant at.
--   view(m, v, now, n, key): what the reply carries, if that is not the value.
local twins = {}
