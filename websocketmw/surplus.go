package websocketmw

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/websocketmw/internal/frames"
)

const (
	surplusDelay   = time.Second      // from a doubt to the first look, at most: others state their sockets again, too
	surplusSpread  = 10 * time.Second // in which all suspects are looked at, so that not all clients come back at once
	surplusLooks   = 32               // at the same time
	surplusTimeout = 5 * time.Second  // of a look
	surplusRetry   = 5 * time.Second  // until those are looked at again for which the store had no answer
)

// The surplus of a guard are the sockets that may be too many: those that were admitted
// without the store, and all of them after a core.Slot.Doubt. The guard's lock guards it.
type surplus struct {
	guard    *Guard
	suspects []*Socket
	looking  bool          // a goroutine looks at the suspects
	done     chan struct{} // ends the goroutine that waits for a doubt; nil: there is none
}

// add takes in a new socket.
func (x *surplus) add(s *Socket) {
	if s.slot.Source() != core.SourceStore {
		x.suspect(s)
	}
	if doubt := s.slot.Doubt(); doubt != nil && x.done == nil {
		x.done = make(chan struct{})
		go x.watch(s.slot, doubt, x.done)
	}
}

// stop is called when there is no socket left.
func (x *surplus) stop() {
	if x.done != nil {
		close(x.done)
		x.done = nil
	}
}

// watch suspects all sockets after each doubt.
func (x *surplus) watch(slot *core.Slot, doubt <-chan struct{}, done <-chan struct{}) {
	for {
		select {
		case <-doubt:
		case <-done:
			return
		}
		// What happens from now on is another doubt.
		doubt = slot.Doubt()
		all := x.guard.all()
		slices.SortFunc(all, func(a, b *Socket) int { return b.Since().Compare(a.Since()) })
		x.guard.mu.Lock()
		x.suspect(all...)
		x.guard.mu.Unlock()
	}
}

// suspect causes sockets to be looked at.
func (x *surplus) suspect(all ...*Socket) {
	for _, s := range all {
		if !s.suspect {
			s.suspect = true
			x.suspects = append(x.suspects, s)
		}
	}
	if len(x.suspects) > 0 && !x.looking && !x.guard.draining {
		x.looking = true
		go x.look()
	}
}

// take takes out all suspects. There are none when the guard is shutting down; then, or
// when there are none left, the goroutine that looks ends.
func (x *surplus) take() (all []*Socket) {
	x.guard.mu.Lock()
	defer x.guard.mu.Unlock()
	all, x.suspects = x.suspects, nil
	for _, s := range all {
		s.suspect = false
	}
	if x.guard.draining {
		all = nil
	}
	x.looking = len(all) > 0
	return all
}

// look looks at all suspects until there are none.
func (x *surplus) look() {
	x.guard.pause(rand.N(surplusDelay)) //nolint:gosec // no secret
	for all := x.take(); len(all) > 0; all = x.take() {
		if unknown := x.lookAt(all); len(unknown) > 0 {
			x.guard.mu.Lock()
			x.suspect(unknown...)
			x.guard.mu.Unlock()
			x.guard.pause(surplusRetry/2 + rand.N(surplusRetry)) //nolint:gosec // no secret
		}
	}
}

// lookAt closes those sockets that are too many, and returns those of which that is not
// known. After the first of these it leaves the rest for later, when they come first.
func (x *surplus) lookAt(all []*Socket) (unknown []*Socket) {
	var rest []*Socket
	var mu sync.Mutex
	var looks sync.WaitGroup
	free := make(chan struct{}, surplusLooks)
	start := time.Now()
	for i, s := range all {
		x.guard.pause(time.Until(start.Add(surplusSpread * time.Duration(i) / time.Duration(len(all)))))
		free <- struct{}{}
		mu.Lock()
		away := len(unknown) > 0
		mu.Unlock()
		if away || x.guard.isDraining() {
			rest = all[i:]
			break
		}
		looks.Go(func() {
			defer func() { <-free }()
			if !s.shed() {
				mu.Lock()
				unknown = append(unknown, s)
				mu.Unlock()
			}
		})
	}
	looks.Wait()
	return slices.Concat(rest, unknown)
}

// shed closes the socket if it is too many, and reports whether that is known.
func (s *Socket) shed() (known bool) {
	ctx, cancel := context.WithTimeout(context.Background(), surplusTimeout)
	defer cancel()
	shed, err := s.slot.Shed(ctx)
	if shed {
		s.endFor(EventShed, frames.CodeTryAgain, "too many sockets are open; try again later")
	}
	return err == nil || errors.Is(err, core.ErrClosed)
}

// pause waits for d, or until the guard is shut down.
func (g *Guard) pause(d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-g.drained:
	}
}
