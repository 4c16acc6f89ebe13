package store

// A Limiter is a limiter as stores have prepared it. The store, and each layer above it, may keep
// its data about each limiter with it, such as the names of its keys. It is safe for concurrent use
// once it is prepared.
type Limiter struct {
	spec  Spec
	parts []part
}

// A part is what a store keeps with a limiter.
type part struct {
	place *Place
	kept  any
}

// A Place is where a store keeps something with limiters: a field of the store, which is told
// apart by its address. It must not be copied.
type Place struct{ _ byte }

// NewLimiter returns a limiter that no store has prepared.
func NewLimiter(spec Spec) *Limiter { return &Limiter{spec: spec} }

// Spec returns the specification of the limiter. It must not be modified.
func (l *Limiter) Spec() *Spec { return &l.spec }

// Keep keeps a value with the limiter. It replaces the value that was kept in that place before. It
// is for Prepare, and is not called concurrently.
func (l *Limiter) Keep(in *Place, kept any) {
	for i := range l.parts {
		if l.parts[i].place == in {
			l.parts[i].kept = kept
			return
		}
	}
	l.parts = append(l.parts, part{in, kept})
}

// Kept returns the value kept in that place, or nil.
func (l *Limiter) Kept(in *Place) any {
	for i := range l.parts {
		if l.parts[i].place == in {
			return l.parts[i].kept
		}
	}
	return nil
}
