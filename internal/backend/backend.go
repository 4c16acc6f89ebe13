// Package backend is what is behind the types of package core: what guards need of it and users do not. Methods
// named Backend of these types lead here.
package backend

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/core/store"
	"github.com/headgate/headgate/internal/ontrial"
	"github.com/headgate/headgate/internal/slots"
)

// A Store is what is behind a core.Store.
type Store struct {
	Rates    store.Store
	Slots    slots.Store
	Observer *store.Observer // of slots; nil: none

	closed atomic.Bool // CloseSlots was called
}

// CloseSlots lets nobody acquire slots any more, and states that this process holds none.
func (s *Store) CloseSlots(ctx context.Context) error {
	s.closed.Store(true)
	return s.Slots.Close(ctx, "")
}

// An Observer is what package stats learns of: what stores tell, and the stores in memory.
type Observer struct {
	Told   *store.Observer
	Memory func(*memstore.Store)
}

// A Book has the policies and the numbers of slots that a document gives to plans and keys.
type Book interface{ View() View }

// A View is a book at one moment.
type View interface {
	// Limiter and Slots return what applies to a key of a request of a plan: policies, and a number. A plan that the
	// document lacks is the default.
	Limiter(name, plan, key string) *core.Limiter
	Slots(name, plan, key string) int64

	// Limiters returns those of all plans.
	Limiters(name string) []*core.Limiter
}

// A Limiter is one plan of a limiter: policies, or what a document gives to its keys.
type Limiter struct {
	name  string
	fixed *core.Limiter // nil: the document has it
	fault error         // of every call, if a function has returned wrong policies

	book Book
	plan string
}

// Constant returns a limiter of policies that do not change.
func Constant(l *core.Limiter) *Limiter { return &Limiter{name: l.Name(), fixed: l} }

// Faulty returns a limiter whose calls fail.
func Faulty(name string, err error) *Limiter { return &Limiter{name: name, fault: err} }

// Documented returns a limiter of a document.
func Documented(b Book, name, plan string) *Limiter { return &Limiter{name: name, book: b, plan: plan} }

// Name returns the name of the limiter.
func (l *Limiter) Name() string { return l.name }

// Book returns the document that has the policies, or nil.
func (l *Limiter) Book() Book { return l.book }

// At returns what applies to a key as of a view of the limiter's book, which is nil for constants.
func (l *Limiter) At(v View, key string) (*core.Limiter, error) {
	if l.fixed != nil {
		return l.fixed, nil
	}
	if l.fault != nil {
		return nil, l.fault
	}
	return v.Limiter(l.name, l.plan, key), nil
}

// Now is At as of now.
func (l *Limiter) Now(key string) (*core.Limiter, error) { return l.At(l.view(), key) }

func (l *Limiter) view() View {
	if l.book == nil {
		return nil
	}
	return l.book.View()
}

// Policies describes the policies for keys that a document does not name: what all responses share. Of limiters of
// documents it is for now.
func (l *Limiter) Policies() []Answer {
	at, err := l.Now("")
	if err != nil {
		return nil
	}
	var all []Answer
	for _, p := range at.Policies() {
		all = append(all, Answer{Limiter: l.name, Policy: p.Name(), Limit: p.Limit(), Window: p.Window()})
	}
	return all
}

// SameStore reports whether two limiters can be charged together.
func (l *Limiter) SameStore(m *Limiter) bool {
	a, err := l.Now("")
	b, fault := m.Now("")
	return err != nil || fault != nil || a.Store() == b.Store()
}

// Observed marks the context of questions whose refusals affect nobody, for observers.
func Observed(ctx context.Context) context.Context { return ontrial.Mark(ctx) }

// NameFault returns what is wrong with the name of a limiter or of slots, or nil.
func NameFault(name string) error { return core.CheckName(name) }

// Invalid returns an error about a call that wraps core.ErrInvalid.
func Invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{core.ErrQuestion}, args...)...)
}
