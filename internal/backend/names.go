package backend

import (
	"log/slog"
	"sync"
)

// maxNames is how many names of a store are remembered: a program may make limiters for ever.
const maxNames = 1024

// names are what a program has made with a store. Two limiters of one name are one to the store, as two guards want it
// that count together. With other policies they are most often two that were to be told apart.
type names struct {
	mu     sync.Mutex
	byName map[string]*named // by what it is, and its name
}

// named is what was made first under a name.
type named struct {
	limits string
	warned bool
}

// Named notes that a program has made a limiter, or slots, with a text of its limits. If another of that name has other
// limits, the operator is told, once for the name. It is not for plans, and not for documents.
func (s *Stores) Named(what, name, limits string) {
	first, differs := s.names.add(what+" "+name, limits)
	if !differs {
		return
	}
	slog.Default().Warn("headgate: two "+what+" of one store have one name and other limits, and count together: "+
		"give them different names, or make plans of one with WithPlan",
		slog.String("name", name), slog.String("first", first), slog.String("second", limits))
}

// add returns the first limits of a name, and whether these differ and nobody was told. A name that finds no room is
// taken for a new one each time, and nobody is told of it.
func (n *names) add(name, limits string) (first string, differs bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	earlier := n.byName[name]
	if earlier == nil {
		if n.byName == nil {
			n.byName = make(map[string]*named)
		}
		if len(n.byName) < maxNames {
			n.byName[name] = &named{limits: limits}
		}
		return "", false
	}
	differs = earlier.limits != limits && !earlier.warned
	earlier.warned = earlier.warned || differs
	return earlier.limits, differs
}
