package backend

import (
	"log/slog"
	"sync"
)

// mostNames is the most names of a store that are remembered: a program may make limiters for ever.
const mostNames = 1024

// names are what a program has made with a store. Two limiters of one name are one to the store, as two guards want it
// that count together. With other policies they are most often two that were to be told apart.
type names struct {
	mu   sync.Mutex
	made map[string]*made // by what it is, and its name
}

type made struct {
	text string
	told bool
}

// Named notes that a program has made a limiter, or slots, with a text of its limits. If another of that name has other
// limits, the operator is told, once for the name. It is not for plans, and not for documents.
func (s *Stores) Named(what, name, text string) {
	first, differs := s.names.add(what+" "+name, text)
	if !differs {
		return
	}
	slog.Default().Warn("headgate: two "+what+" of one store have one name and other limits, and count together: "+
		"give them different names, or make plans of one with WithPlan",
		slog.String("name", name), slog.String("first", first), slog.String("second", text))
}

// add returns the first text of a name, and whether this one differs and nobody was told.
func (n *names) add(name, text string) (first string, differs bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	m := n.made[name]
	if m == nil {
		if n.made == nil {
			n.made = make(map[string]*made)
		}
		if len(n.made) < mostNames {
			n.made[name] = &made{text: text}
		}
		return "", false
	}
	differs = m.text != text && !m.told
	m.told = m.told || differs
	return m.text, differs
}
