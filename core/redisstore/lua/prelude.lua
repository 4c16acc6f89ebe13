-- Answers questions in order, each all or nothing.
--
-- KEYS: the values of all questions. ARGV[1]: the instant, for tests, or '' for the server's.
-- ARGV[2]: a byte for each algorithm: 1 if a question uses it, 2 if it reads a value in parts,
-- or 0; then the questions. ARGV[3]: the numbers of the policies, one after the other.
--
-- The questions are byte strings:
--
--   mode, number of parts, bytes of a part, 1 if they are about several keys or 0, then the parts:
--   algorithm, 1 if it counts what is refused or 0, the form of its value, which key it is about,
--   from 1, and in two bytes where in numbers its policy is, from 1; then, unless n is 1: n; and to
--   settle, also: at, actual. In mode + EXTRA the parts are followed by how many units more to
--   charge, as far as all policies admit them
--
-- The form is MORE or LAST if the value of the key has records, one for each policy: of a limiter,
-- all but the logs. The parts about it follow each other, and LAST is the last of them. A log is a
-- value of its own: WHOLE, or IN_PARTS if it may be long, and is read in parts. A record is a word,
-- its tag, and the policy's value. A tag says which policy it is, the algorithm, and the length:
-- ((policy * 8) + algorithm) * 2^24 + length.
--
-- A question of mode DENY is refused whatever its policies say.
--
-- The reply is the instant, then for each part of each question a byte: 1 if the policy
-- admits it, 2 if the question is allowed, 4 if the state follows; and for a settlement
-- the units that found no room. If an EXTRA was allowed, the number that was charged follows
-- the first byte. Or, for a whole question, 8 and an error: its length in
-- two bytes, and the text. Or 16 and a number of words: to lay out so many anew is too
-- much for this call, which has other questions; nothing was written for this one, and it
-- is to be sent again.
--
-- To define functions takes a server as long as to decide. So what most questions need is in
-- one piece, into which the twins of the steps, in core/step, are put; and the rest is defined
-- when it is needed. These are the parts of a twin. The policy's numbers are in the string
-- numbers from byte place on, as words, in the order of Step.Constants; before them is the tag that
-- its record has under these numbers. own has the record from byte o on; or it is the value of a
-- log, or no more than its beginning if that is read in parts; or false. A value begins with the
-- numbers that it is kept under. key is its name. A twin writes nothing.
--
--   helpers: what the others need, before all questions
--   admits: sets ok to whether n units fit, a to h for the parts below, which are nil before, and z to
--     the last byte of a record. Or it leaves ok nil, if own is not of these numbers: if they, or the tag, or the
--     length of a log, are others. If it is, then whatever the rest of it holds, this and the
--     others raise no error and take no longer than with any other. Unless others is set, it leaves
--     ok nil also if own is ahead of now by more than Step.Window: then take brings it back.
--   charge, refuse: set new to the new value; life, for which it counts, in microseconds, or 0 if
--     that has not grown; and state, which is replied, as step.ReadTwin expects it. Instead of new
--     they may set patch, unless others is set: no more of the record changes than these bytes from
--     PATCHED[algorithm] on. Or a log sets patches: after how many bytes, which, and so on. refuse
--     is for policies that count what is refused.
--   state: sets state, if there is one, where nothing was charged
--   grows: if read in parts, sets more to the words that a charge lays out anew, if any
--   rare: adds the functions that are rarely needed to the table rare

-- Numbers are stored as words of 7 bytes, big endian: every integer up to 2^53-1. Some of a log
-- have 2.
-- read('>I7I7', v, i) returns two words from byte i on, and perhaps a value more;
-- pack('>I7I7', x, y) joins two.
local sub, find, byte, char, rep, concat = string.sub, string.find, string.byte, string.char, string.rep, table.concat
local min, max = math.min, math.max
local call, try = redis.call, redis.pcall

local read, pack
local struct = rawget(_G, 'struct') -- a library that not every server has
if struct then
  read, pack = struct.unpack, struct.pack
else
  function read(format, v, i)
    local out = {}
    for k = 1, (#format - 1) / 2 do
      local x = 0
      for _ = 1, tonumber(sub(format, 2 * k + 1, 2 * k + 1)) do
        x, i = x * 256 + byte(v, i), i + 1
      end
      out[k] = x
    end
    return unpack(out)
  end
  function pack(format, ...)
    local out = {}
    for k = 1, (#format - 1) / 2 do
      local x, digits = select(k, ...), {}
      for i = tonumber(sub(format, 2 * k + 1, 2 * k + 1)), 1, -1 do
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

local MAXLOG = 16384 -- units of a log

local BEGINNING = 477 -- bytes that are read of a long log: its header and 64 entries

local ANOTHER = 'the key holds a value of another kind'

-- The bytes before those that most charges change: the tag and the numbers. To make a string of a
-- number takes a server long, so those are known that are needed most, by that number and one.
local PATCHED = {28, 14, 21, 0}
local OFFSETS = {[29] = '28', [15] = '14', [22] = '21', [1] = '0'}

local LENGTHS = 16777216 -- 2^24: what a tag counts the policies by

local function div(a, b) return (a - a % b) / b end -- exact where a/b would round

local now
local given = ARGV[1] ~= '' -- the instant is given: in tests, whose clock is not the server's
if given then
  now = tonumber(ARGV[1])
else
  local t = call('TIME')
  now = t[1] * 1000000 + t[2]
end

local questions, numbers = ARGV[2], ARGV[3]
local used = sub(questions, 1, 5)
