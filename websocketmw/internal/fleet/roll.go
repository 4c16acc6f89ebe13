// The roll: it owns the one membership lock, and whether members are admitted. It may not know why.

package fleet

import (
	"sync"
	"time"
)

// A roll has the members, and the membership lock. Who holds it may not call a Socket.
type roll struct {
	mu       sync.Mutex
	members  map[*Member]struct{}
	draining bool
	drained  chan struct{} // closed when draining
	empty    chan struct{} // closed when draining and no member is left
}

// Len returns the number of members.
func (r *roll) Len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.members)
}

// All returns the members, in no order.
func (r *roll) All() []*Member {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]*Member, 0, len(r.members))
	for m := range r.members {
		all = append(all, m)
	}
	return all
}

// Drain admits no member from now on.
func (r *roll) Drain() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.draining {
		r.draining = true
		close(r.drained)
		if len(r.members) == 0 {
			close(r.empty)
		}
	}
}

// Draining reports whether no member is admitted.
func (r *roll) Draining() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.draining
}

// Empty returns a channel that is closed when there is no member, and none is admitted.
func (r *roll) Empty() <-chan struct{} { return r.empty }

// leave removes a member. r.mu is held.
func (r *roll) leave(m *Member) {
	delete(r.members, m)
	if r.draining && len(r.members) == 0 {
		close(r.empty)
	}
}

// disown notes that a member gives up its slot, or has: from now on it is offered to no newcomer.
func (r *roll) disown(m *Member) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m.slotless = true
}

// pause waits for d, or until the fleet drains.
func (r *roll) pause(d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.drained:
	}
}
