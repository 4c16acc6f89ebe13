package step

// What tests try alone.
var (
	Keep, Take, Count = keep, take, count
	Larger            = larger
	Room, Settle      = room, settle
)

// Redate is redate, which replaces the state, and reports whether it did.
func Redate(p Step, own *Variant, others []Variant, now int64) bool {
	if own.State == nil {
		return false
	}
	full := redate(p, own, others, now)
	if full == nil {
		return false
	}
	own.State = full
	return true
}
