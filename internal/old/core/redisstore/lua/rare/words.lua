-- From here on is what few questions need. One has needed it, and begins again after it.
--
-- The steps get more functions, which mirror those of step.Step:
--
--   alike: so many bytes are the same in every state that means the same under these numbers
--   max(place): the largest charge; missing if it counts calls, not units
--   report(v, from, n, place, number): what changes if n units are counted that have been used, as
--     charge returns it, and the reply about one more
--   giveback(v, from, at, n, place, number): what changes of the record, as charge returns it
--
-- And these are for states under any parameters, each a record without its tag, or a log:
--
--   intact(v), adopt(v, place), redate(v, place, longest), larger(v, place), count(v, n, till)
--   lasts(v): the instant from which it is fresh, its window, how much it shows, and its reach, if that is
--     longer than the window

rare, failed = {}, nil

local ANOTHER = 'the key holds a value of another kind'

local LENGTHS = 16777216 -- 2^24: what a tag counts the policies by

local MAXINT = 9007199254740991 -- 2^53 - 1

-- div returns the quotient of integers, exactly.
local function div(a, b) return (a - a % b) / b end

-- isperiod reports whether v begins with a period that a policy may have.
local function isperiod(v)
  local period = read('>I7', v, 1)
  return period >= 1 and period <= 4503599627370496
end

-- tagged returns the record of a state of the policy.
local function tagged(v, place)
  local tag = read('>I7', numbers, place)
  return pack('>I7', tag - tag % LENGTHS + #v) .. v
end
