package store

// A Limiter is a limiter as stores have prepared it. The store, and each layer above it, may keep
// with it what is to be at hand for each limiter, such as the names of its keys. It is safe for
// concurrent use once it is prepared.
type Limiter struct {
	spec  Spec
	parts []part
}

// A part is what a store keeps with a limiter.
type part struct{ of, kept any }

// NewLimiter returns a limiter that no store has prepared.
func NewLimiter(spec Spec) *Limiter { return &Limiter{spec: spec} }

// Spec returns what the limiter was made from. It must not be modified.
func (l *Limiter) Spec() *Spec { return &l.spec }

// Keep keeps something with the limiter for a store, instead of what it has kept before. The
// store is comparable. Keep is for Prepare, and is not called concurrently.
func (l *Limiter) Keep(of, kept any) {
	for i := range l.parts {
		if l.parts[i].of == of {
			l.parts[i].kept = kept
			return
		}
	}
	l.parts = append(l.parts, part{of, kept})
}

// Kept returns what was kept for a store, or nil.
func (l *Limiter) Kept(of any) any {
	for i := range l.parts {
		if l.parts[i].of == of {
			return l.parts[i].kept
		}
	}
	return nil
}
