package store

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/headgate/headgate/internal/hidden"
)

// A Notice is for processes that hold slots of a key. For example, they must give them up.
type Notice struct {
	Name string // of the slots
	Key  string `json:"-"`
	Text string // at most MaxNotice bytes, of which the store knows nothing; it may be kept in a server

	// All also tells processes that do not hold slots of the key as far as the store knows, because
	// a server may have lost that. Nobody waits for their answers. Such a notice reaches a process
	// for a minute, whatever else is announced meanwhile. Any other notice may be forgotten as soon
	// as Announce returns.
	All bool
}

// Format implements [fmt.Formatter]: it prints the notice without its key.
func (n Notice) Format(s fmt.State, verb rune) {
	type plain Notice
	n.Key = hidden.Mark
	hidden.Print(s, verb, plain(n))
}

// MaxNotice is the most bytes that the Text of a [Notice] may have.
const MaxNotice = 1 << 10

// Heard is a [Notice] as it is heard.
type Heard struct {
	Topic string `json:"-"` // of the key: see [Noticer].Topic
	Text  string

	// Age is how long ago it was announced. Slots acquired since are not meant.
	Age time.Duration
}

// Format implements [fmt.Formatter]: it prints the notice without its topic, which may be the key.
func (h Heard) Format(s fmt.State, verb rune) {
	type plain Heard
	h.Topic = hidden.Mark
	hidden.Print(s, verb, plain(h))
}

// An Answer is the answer of a listener to a notice. The zero Answer says nothing.
type Answer struct {
	Text string

	// Then is called once the announcer can know the answer, or never will. It is for effects that
	// must not be seen before. It may be nil.
	Then func()
}

// Listeners are the functions with which a store's Listen was called. The zero value has none. It
// is safe for concurrent use.
type Listeners struct {
	mu  sync.Mutex
	all map[string][]*listener // by the name of the slots; the slices are never changed
}

type listener struct{ listen func(Heard) Answer }

// Add adds one, until remove is called.
func (l *Listeners) Add(name string, listen func(Heard) Answer) (remove func()) {
	one := &listener{listen}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all == nil {
		l.all = make(map[string][]*listener)
	}
	l.all[name] = append(slices.Clone(l.all[name]), one)
	return func() { l.remove(name, one) }
}

func (l *Listeners) remove(name string, one *listener) {
	l.mu.Lock()
	defer l.mu.Unlock()
	some := slices.DeleteFunc(slices.Clone(l.all[name]), func(x *listener) bool { return x == one })
	if l.all[name] = some; len(some) == 0 {
		delete(l.all, name)
	}
}

// None reports whether there is none, of any name.
func (l *Listeners) None() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.all) == 0
}

// Tell calls the listeners of a name, and returns their answers. The caller must call their Then.
func (l *Listeners) Tell(name string, h Heard) (answers []Answer) {
	l.mu.Lock()
	some := l.all[name]
	l.mu.Unlock()
	for _, one := range some {
		answers = append(answers, one.listen(h))
	}
	return answers
}
