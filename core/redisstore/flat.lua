-- Answers questions that all ask one limiter, and are alike but for the key and n, as
-- main.lua does, without making functions and tables. flat.go fills in the placeholders.
--
-- KEYS, ARGV[1] and the reply are those of main.lua. ARGV[2]: n of each question, or ''
-- if all are 1. ARGV[3] and on: the policies.
--
-- If a value is not intact, or too much has to be laid out anew, nothing is written and the
-- reply is empty: then the questions are put to main.lua, which fails that of this value
-- alone, or puts some off.
@constants
local values, ns, out, words = {}, ARGV[2], {}, 0
local got = @got
for i = 1, #KEYS, @count do
@units
@checks
end
@heavy
for i = 1, #KEYS, @count do
@n
  local allowed, failed = true, false
@parts
  if failed then
    for k = 2 * i, 2 * (i + @count - 1) do out[k] = '' end
    out[2 * i - 1] = '\8\0\0'
  end
end
return pack('>I7', now) .. concat(out)
