-- The questions from the first on that needs what is in rare, and their errors.

-- special is decide for a question to settle, or with an EXTRA before it.
function rare.special(pos, piece, mode)
  if mode == 3 then
    local done, err = pcall(settle, pos, piece)
    if not done then failed = err end
  else
    local allowed, granted = decide(pos + 8, piece, true, read('>I7', questions, pos + 1), 8)
    if allowed and not failed then out[piece] = out[piece] .. pack('>I7', granted) end
  end
end

-- fail replies with the error of the question at byte pos. It returns one that all questions have, such as
-- READONLY or OOM. before is how many pieces the reply had before it, and done what work was.
function rare.fail(pos, before, done)
  pieces = before + 1
  if failed == 'too much' then
    out[pieces] = '\16' .. pack('>I7', work - done)
  else
    local err = type(failed) == 'table' and failed.err or tostring(failed)
    local text, code = string.match(err, '((%u%u%u+) .*)') -- an error of the server
    if code and code ~= 'WRONGTYPE' and code ~= 'ERR' then return {err = text} end
    err = sub(err, 1, 200)
    out[pieces] = '\8' .. string.char(0, #err) .. err
  end
  failed, work, after = nil, done, pos
  if string.byte(questions, pos) == 4 then after = pos + 8 end
  repeat
    local mode, more, _, _, _, _, _, _, n = string.byte(questions, after, after + 8)
    after = after + (mode == 3 and 31 or n == 0 and 17 or 10)
  until more == 0
end

-- The question that needed it, and those after it.
while question <= #questions do
  local before, done = pieces, work
  decide(question, before + 1, true, 0, 8)
  if failed then
    local err = rare.fail(question, before, done)
    if err then return err end
  end
  question = after
end
return table.concat(out, '', 1, pieces)
