-- room does what room in step.go does, by bisecting: the largest number of units from lo to hi that a policy admits. It admits lo.
function rare.room(step, v, from, lo, hi, place, number)
  if step.admits(v, from, hi, place, number) then return hi end -- mostly
  while lo < hi do
    local mid = lo + div(hi - lo + 1, 2)
    if step.admits(v, from, mid, place, number) then lo = mid else hi = mid - 1 end
  end
  return lo
end
