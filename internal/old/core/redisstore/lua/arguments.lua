-- Answers questions in order, each all or nothing, as step.Decide does.
--
-- KEYS: the values of all questions. ARGV[1]: the instant, for tests, or '' for the server's.
-- ARGV[2]: a byte for each algorithm: 1 if a question uses it, 2 if it reads a value in parts,
-- or 0; 1 if there is but one question, or 0; then the questions. ARGV[3]: the numbers of the
-- policies, one after the other.
--
-- A question is the cells that it is about, one after the other, in bytes: the mode, how many cells
-- follow, the algorithm, 1 if it counts what is refused or 0, the form of the value, which key it
-- is, from 1, in two bytes where in numbers the policy is, from 1; n; 1 if the question is about
-- several keys or 0. If the byte of n is 0, n follows as a word; and to settle, also: at, actual.
-- 8 is added to the mode of a cell whose units count ANYWAY, and 16 to that of one which has none and only
-- CHECKs.
-- Before a question there may be EXTRA, and as a word how many units more it charges if all admit
-- them, or as many as they do.
--
-- The modes are 0 ALLOW, 1 PEEK, 2 REFUSE, which refuses whatever the policies say, 3 SETTLE, and
-- 4 EXTRA. The forms are 0 MORE and 1 LAST of a value with records, one for each policy of a limiter
-- but the logs; 2 WHOLE of a log, which is a value of its own, and 3 IN_PARTS if that may be long:
-- then its beginning is read.
--
-- A value is a word, the instant at which it expires, and from byte 8 on its records, or a log. A
-- record is a word, its tag, and the state: first the parameters that it means something under. A
-- tag says which policy it is, the algorithm, and the length:
-- ((policy * 8) + algorithm) * 2^24 + length.
--
-- The reply is the instant, then for each cell of each question a byte, 1 if the policy admits it
-- and 2 more if the question is allowed, and what step.ReadTwin expects; before that, of units that count
-- anyway, how many had no room; or for a settlement 3 and the units that found no room. If units were granted to an EXTRA, their number follows the first
-- byte. Or, for a whole question, 8 and an error: its length in two bytes, and the text. Or 16 and a
-- number of words: to lay out so many anew is too much for this call, which has other questions;
-- nothing was written for this one, and it is to be sent again.
--
-- What a server takes for a decision is the instructions of its Lua machine, most of all calls, tables
-- that grow, and the definition of functions: of each, and of each variable that it shares with
-- others. So numbers such as the modes are written out; tables are made as large as one question needs;
-- what a question calls but once, such as redis.call, is no local. The functions of an algorithm are
-- defined if a question uses it, and those in rare after a question has needed one: decide.lua
-- returns before, if none has. scripts/instructions counts.

local sub = string.sub

-- Numbers are stored as words of 7 bytes, big endian: every integer up to 2^53-1. Some of a log
-- have 2. read('>I7I7', v, i) returns two words from byte i on, and perhaps a value more;
-- pack('>I7I7', x, y) joins two.
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
        x, i = x * 256 + string.byte(v, i), i + 1
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
        digits[i] = string.char(digit)
        x = (x - digit) / 256
      end
      out[k] = table.concat(digits)
    end
    return table.concat(out)
  end
end

local now
if ARGV[1] ~= '' then -- in tests, whose clock is not the server's
  now = tonumber(ARGV[1])
else
  local t = redis.call('TIME')
  now = t[1] * 1000000 + t[2]
end

local questions, numbers = ARGV[2], ARGV[3]
local usesBuckets, usesFixed, usesSliding, usesLogs, usesIntervals, alone = string.byte(questions, 1, 6)

-- steps has the functions of each algorithm that is used. They mirror those of step.Step. At byte place of
-- numbers is the tag of the policy's record, and behind it are the policy's numbers: words, in the order
-- of Step.Constants. v has the record from byte from on, or is false if there is none. It is stored
-- there if from is more than 1. At byte 1 it is one that find has made: it is not ahead of now, and all
-- of it is to be written. number is that of the key, whose value may be longer than v. A state is up to six
-- numbers, which only its algorithm understands.
--
--   admits(v, from, n, place, number): whether n units fit, the last byte of the record, and the state.
--     Whether is nil if the record is not of these parameters, or is ahead of now by more than
--     Step.Redate lets it be. Whatever else it holds, admits raises no error and takes no longer.
--   charge(v, from, n, place, number, ...): what changes if n units are charged to the state, which
--     admits has returned for n. It returns five values:
--       new: the bytes that change, or the whole record; of a long log it may be parts, as save wants them
--       left, right: which bytes of v become new; nil if new is the whole record
--       ends: until when the state counts, if that is later than before
--       reply: what step.ReadTwin expects
--   refuse(v, from, n, place, number, ...): the same for attempts that count as refused
--   reply(v, from, n, place, number, allowed, ...): the reply if nothing is charged
--   grows(n, place, ...): the words that a charge lays out anew; of a log
local steps = {nil, nil, nil, nil, nil}

