// Who is told that slots were lost. It may not release any.

package fleet

// A losses table has the channels of core.Slot.Lost, which many slots may share, each with one
// goroutine that waits for it. The roll's lock guards it.
type losses map[<-chan struct{}]*loss

// A loss is one channel.
type loss struct {
	sockets int           // that have this channel
	stop    chan struct{} // closed when there are none left
	lost    bool          // the channel was closed
}

// await arranges for a member's socket to be told when its slots are lost. roll.mu is held.
func (ls losses) await(r *roll, m *Member) {
	lost := m.slot.Lost()
	if lost == nil {
		return
	}
	l := ls[lost]
	switch {
	case l == nil:
		l = &loss{stop: make(chan struct{})}
		ls[lost] = l
		go func() {
			select {
			case <-lost:
				for _, m := range ls.losers(r, lost) {
					m.socket.Lost()
				}
			case <-l.stop:
			}
		}()
	case l.lost:
		go m.socket.Lost()
	}
	l.sockets++
}

// forget undoes await for one member. roll.mu is held.
func (ls losses) forget(m *Member) {
	lost := m.slot.Lost()
	if l := ls[lost]; l != nil {
		if l.sockets--; l.sockets == 0 {
			close(l.stop)
			delete(ls, lost)
		}
	}
}

// losers returns the members of a channel that was closed. For later ones await tells.
func (ls losses) losers(r *roll, lost <-chan struct{}) (losers []*Member) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l := ls[lost]; l != nil {
		l.lost = true
	}
	for m := range r.members {
		if m.slot.Lost() == lost {
			losers = append(losers, m)
		}
	}
	return losers
}
