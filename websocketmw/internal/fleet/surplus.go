// The surplus: who may be too many, and when the store is asked about them. It may not count: the store
// does.

package fleet

import (
	"container/list"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/headgate/headgate/core"
)

const (
	surplusDelay   = time.Second      // from a doubt to the first look, at most: others state their sockets again, too
	surplusSpread  = 10 * time.Second // in which all suspects are looked at, so that not all clients come back at once
	surplusLooks   = 32               // at the same time
	surplusTimeout = 5 * time.Second  // of a look
	surplusRetry   = 5 * time.Second  // until those are looked at again for which the store had no answer
)

// A surplus has the members that may be too many: those that were admitted without the store, and
// all of them after a core.Slot.Doubt. The roll's lock guards it.
type surplus struct {
	roll     *roll
	suspects list.List     // of members that have not ended
	looking  bool          // a goroutine looks at the suspects
	done     chan struct{} // ends the goroutine that waits for a doubt; nil: there is none
}

// enter takes in a new member.
func (x *surplus) enter(m *Member) {
	if m.slot.Source() != core.SourceStore {
		x.suspect(m)
	}
	if doubt := m.slot.Doubt(); doubt != nil && x.done == nil {
		x.done = make(chan struct{})
		go x.watch(m.slot, doubt, x.done)
	}
}

// leave forgets a member that has ended.
func (x *surplus) leave(m *Member) {
	if m.suspect != nil {
		x.suspects.Remove(m.suspect)
		m.suspect = nil
	}
}

// stop is called when there is no member left.
func (x *surplus) stop() {
	if x.done != nil {
		close(x.done)
		x.done = nil
	}
}

// watch suspects all members after each doubt.
func (x *surplus) watch(slot *core.Slot, doubt <-chan struct{}, done <-chan struct{}) {
	for {
		select {
		case <-doubt:
		case <-done:
			return
		}
		// What happens from now on is another doubt.
		doubt = slot.Doubt()
		all := x.roll.All()
		slices.SortFunc(all, func(a, b *Member) int { return b.socket.Since().Compare(a.socket.Since()) })
		x.roll.mu.Lock()
		x.suspect(all...)
		x.roll.mu.Unlock()
	}
}

// suspect causes members to be looked at, if they have not ended.
func (x *surplus) suspect(all ...*Member) {
	for _, m := range all {
		if _, open := x.roll.members[m]; open && m.suspect == nil {
			m.suspect = x.suspects.PushBack(m)
		}
	}
	if x.suspects.Len() > 0 && !x.looking && !x.roll.draining {
		x.looking = true
		go x.look()
	}
}

// take takes out all suspects. There are none when the fleet drains; then, or when there are none
// left, the goroutine that looks ends.
func (x *surplus) take() (all []*Member) {
	x.roll.mu.Lock()
	defer x.roll.mu.Unlock()
	for e := x.suspects.Front(); e != nil; e = e.Next() {
		m := e.Value.(*Member)
		m.suspect = nil
		all = append(all, m)
	}
	x.suspects.Init()
	if x.roll.draining {
		all = nil
	}
	x.looking = len(all) > 0
	return all
}

// look looks at all suspects until there are none.
func (x *surplus) look() {
	x.roll.pause(rand.N(surplusDelay))
	for all := x.take(); len(all) > 0; all = x.take() {
		if unknown := x.lookAt(all); len(unknown) > 0 {
			x.roll.mu.Lock()
			x.suspect(unknown...)
			x.roll.mu.Unlock()
			x.roll.pause(surplusRetry/2 + rand.N(surplusRetry))
		}
	}
}

// lookAt has those members shed that are too many, and returns those of which that is not known.
// After the first of these it leaves the rest for later, when they come first.
func (x *surplus) lookAt(all []*Member) (unknown []*Member) {
	var rest []*Member
	var mu sync.Mutex
	var looks sync.WaitGroup
	free := make(chan struct{}, surplusLooks)
	start := time.Now()
	for i, m := range all {
		x.roll.pause(time.Until(start.Add(surplusSpread * time.Duration(i) / time.Duration(len(all)))))
		free <- struct{}{}
		mu.Lock()
		away := len(unknown) > 0
		mu.Unlock()
		if away || x.roll.Draining() {
			rest = all[i:]
			break
		}
		looks.Go(func() {
			defer func() { <-free }()
			if !x.shed(m) {
				mu.Lock()
				unknown = append(unknown, m)
				mu.Unlock()
			}
		})
	}
	looks.Wait()
	return slices.Concat(rest, unknown)
}

// shed has a member's socket shed if it is too many, and reports whether that is known.
func (x *surplus) shed(m *Member) (known bool) {
	ctx, cancel := context.WithTimeout(context.Background(), surplusTimeout)
	defer cancel()
	shed, err := m.slot.Shed(ctx)
	if shed {
		x.roll.disown(m)
		m.socket.Surplus()
	}
	return err == nil || errors.Is(err, core.ErrClosed)
}
