package slots

import (
	"context"
	"slices"
	"sync"
	"time"
)

// A Noticer tells something to all processes: package websocketmw closes and evicts sockets so.
type Noticer interface {
	// Topic stands for a key of slots in what is heard. It is the same in all processes, and tells no more of the key
	// than the store keeps of it.
	Topic(name, key string) string
	// Listen calls listen with each notice about slots of that name, of any process, until stop: one at a time of those
	// of other processes, at most a second after they were announced while the server answers.
	Listen(name string, listen func(Heard) NoticeAnswer) (stop func())
	// Announce tells all listeners, first those of this process, and passes their answers on until one is enough, or
	// all processes that hold slots of the key have answered, or ctx ends. Silent has the number of slots of each
	// process that has not answered. After an error it is unknown who has heard.
	Announce(ctx context.Context, n Notice, answered func(text string) (enough bool)) (silent []int64, err error)
}

// A Notice is a text about a key of slots. All also tells processes that hold no slots of the key as far as the server
// knows, and those that are cut off for less than a minute.
type Notice struct {
	Name, Key, Text string
	All             bool
}

// Heard is a Notice as a listener hears it, and how long ago it was announced: slots acquired since are not meant.
type Heard struct {
	Topic, Text string
	Age         time.Duration
}

// A NoticeAnswer is what a listener says. Then is called once the announcer can know it, or never will; it may be nil.
type NoticeAnswer struct {
	Text string
	Then func()
}

// Listeners are the functions with which Listen was called. The zero value has none.
type Listeners struct {
	Start func() (stop func()) // called for the first, and stop, perhaps again, when the last has gone; may be nil

	mu   sync.Mutex
	all  []*listener // the slice is never changed
	stop func()      // what Start returned
}

type listener struct {
	name   string
	listen func(Heard) NoticeAnswer
}

// Add adds one until remove, which may be called again.
func (l *Listeners) Add(name string, listen func(Heard) NoticeAnswer) (remove func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.all) == 0 && l.Start != nil {
		l.stop = l.Start()
	}
	one := &listener{name, listen}
	l.all = append(slices.Clone(l.all), one)
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.all = slices.DeleteFunc(slices.Clone(l.all), func(other *listener) bool { return other == one })
		if len(l.all) == 0 && l.stop != nil {
			l.stop()
		}
	}
}

// Tell calls the listeners of a name. Then must be called once their answers can be known.
func (l *Listeners) Tell(name string, heard Heard) (texts []string, then func()) {
	l.mu.Lock()
	all := l.all // listeners may come and go meanwhile: each change makes another slice
	l.mu.Unlock()
	var thens []func()
	for _, one := range all {
		if one.name != name {
			continue
		}
		answer := one.listen(heard)
		if answer.Text != "" {
			texts = append(texts, answer.Text)
		}
		if answer.Then != nil {
			thens = append(thens, answer.Then)
		}
	}
	return texts, func() {
		for _, do := range thens {
			do()
		}
	}
}
