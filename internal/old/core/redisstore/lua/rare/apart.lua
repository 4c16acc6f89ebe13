-- Units that count anyway, and charges of nothing, which only check: what Cell.conclude does with them.

-- asked returns, of such a cell at byte pos of questions: its mode without the mark; how many units have to fit, as
-- Asked in step.go; where the next cell is; how many units it has; and whether they count anyway.
function rare.asked(pos, mode, algorithm, n, place)
  local step, next, units = steps[algorithm], pos + 10, n
  if n == 0 then units, next = read('>I7', questions, next), next + 7 end
  if units == 0 then
    n = algorithm > 3 and 1 or 0
  else
    n = step.max and math.min(units, step.max(place)) or units
  end
  return mode % 8, n, next, units, mode < 16
end

-- apart mirrors Cell.report and Cell.conclude for so many units, of which as many as asked may fit. It
-- returns how many were charged, what charge does, and the reply, which begins with how many units had
-- no room, if there are any units.
function rare.apart(step, v, from, asked, place, number, units, mode, admitted)
  local new, left, right, ends, reply
  local charged, need, without = 0, asked, ''
  if units > 0 then
    need, without = 1, pack('>I7', admitted and 0 or units - rare.room(step, v, from, 0, asked, place, number))
  end
  if units > 0 and mode ~= 1 then -- PEEK
    charged = units
    new, left, right, ends, reply = step.report(v, from, units, place, number)
  else
    local _, _, a, b, c, d, e, f = step.admits(v, from, need, place, number)
    reply = step.reply(v, from, need, place, number, false, a, b, c, d, e, f)
  end
  return charged, new, left, right, ends, without .. reply
end
