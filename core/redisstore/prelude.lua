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

local MAXWORDS = 8192 -- that a call may lay out anew, unless it has but one question

local function div(a, b) return (a - a % b) / b end -- exact where a/b would round

-- isperiod reports whether v begins with a period that a policy may have.
local function isperiod(v)
  local period = read('>I7', v, 1)
  return period >= 1 and period <= 4503599627370496
end

local now
local given = ARGV[1] ~= '' -- the instant is given: in tests, whose clock is not the server's
if given then
  now = tonumber(ARGV[1])
else
  local t = call('TIME')
  now = t[1] * 1000000 + t[2]
end

-- twins[algorithm](p) returns the functions of one policy. p is a string: the algorithm, a
-- byte that is 1 if refusals are counted plus 2 if the policy is ranged, and the constants
-- in the order of Step.Constants. v is the stored value, or false. It begins with a header:
-- the numbers that it is kept under.
--
--   header, limit: the header, and the largest charge
--   ranged: v is no more than the value's first bytes
--   intact(v): whether v is a value of this algorithm: its header and its length. The
--     other functions must then raise no error and take no longer than with any other,
--     whatever the rest holds.
--   admits(v, n, key): whether n units fit; if v is converted from other numbers, what
--     even a refusal has to store, as below, or else three times nil; and up to five
--     more results, which the others are called with. It writes nothing.
--   charge(v, n, key, ...), refuse(v, n, key, ...): the new value, or nil if it was
--     written; its life in microseconds, or 0 if that has not grown, unless v was
--     converted; and the state that is replied: the value without the header
--   giveback(v, at, n, key): the same, without n of the units that were charged at the
--     instant at; or nothing
--   grows(v, n, key, ...): of a ranged policy, how many words a charge lays out anew
--   state(v, n, key, ...): the state that is replied if nothing was charged, if that is
--     not the value without the header
--
-- The parts between "--@name" and "--@end" are used in flat scripts too: flat.go has the
-- rules for them.
