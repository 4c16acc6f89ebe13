-- What the twins in core/step build on.
--
-- Numbers are stored as words of 7 bytes, big endian: every integer up to 2^53-1.
-- read('>I7I7', v, i) returns two words from byte i on, and perhaps a value more;
-- pack('>I7I7', x, y) joins two.
local sub, byte, char, rep, concat = string.sub, string.byte, string.char, string.rep, table.concat
local min, max = math.min, math.max
local call = redis.call

local read, pack
local struct = rawget(_G, 'struct') -- a library that not every server has
if struct then
  read, pack = struct.unpack, struct.pack
else
  function read(format, v, i)
    local out = {}
    for k = 1, (#format - 1) / 2 do
      local a, b, c, d, e, f, g = byte(v, i, i + 6)
      out[k] = (((((a * 256 + b) * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g
      i = i + 7
    end
    return unpack(out)
  end
  function pack(format, ...)
    local out, digits = {}, {}
    for k = 1, (#format - 1) / 2 do
      local x = select(k, ...)
      for i = 7, 1, -1 do
        local digit = x % 256
        digits[i] = char(digit)
        x = (x - digit) / 256
      end
      out[k] = concat(digits)
    end
    return concat(out)
  end
end

local function div(a, b) return (a - a % b) / b end -- exact where a/b would round

-- px returns the time to live, in milliseconds, to give a value that counts for so
-- many microseconds: half as much again, so that few writes have to renew it; or
-- nothing, if the key has enough left. So no life is ever shortened, for a limiter
-- of the same name with other numbers may need the longer one. In a test, whose
-- clock is not the server's, nothing expires.
local function px(life, key)
  if ARGV[1] ~= '' then return 3600000 end
  life = life + 999
  local ms = max((life - life % 1000) / 1000, 1)
  if key and call('PTTL', key) >= ms then return nil end
  return ms + (ms - ms % 2) / 2
end

-- twins[algorithm] has the functions of one algorithm. m holds its policy's
-- constants, as Step.Constants lists them, and m.header, the numbers that every
-- value begins with; v is the stored value, or false.
--
--   format, header: of the constants, and how many of them make the header
--   admits(m, v, now, n, key): whether n units fit, then what charge and refuse
--     want to know of the state. It writes nothing.
--   charge(m, v, now, n, a, b, key), refuse(...): the new value, and its life in
--     microseconds.
--   adopt(m, v, now): the same, for a value that was kept under other numbers and
--     means something else under these; or nil. Step.Adopt tells why.
--   giveback(m, v, now, at, n, key): the same, without n of the units that were
--     charged at the instant at; or nil.
--   view(m, now, n, a): what the reply carries, if that is not the value.
local twins = {}
