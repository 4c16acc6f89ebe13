package websocketmw

// A loss watches a channel of core.Slot.Lost, which many slots may share.
type loss struct {
	sockets int           // that have this channel
	stop    chan struct{} // closed when there are none left
	lost    bool          // the channel was closed
}

// watch arranges for s.lose to be called when the socket's slots are lost. g.mu is held.
func (g *Guard) watch(s *Socket) {
	lost := s.slot.Lost()
	if lost == nil {
		return
	}
	l := g.losses[lost]
	switch {
	case l == nil:
		l = &loss{stop: make(chan struct{})}
		g.losses[lost] = l
		go func() {
			select {
			case <-lost:
				for _, s := range g.losers(lost) {
					s.lose()
				}
			case <-l.stop:
			}
		}()
	case l.lost:
		go s.lose()
	}
	l.sockets++
}

// unwatch undoes watch for one socket. g.mu is held.
func (g *Guard) unwatch(lost <-chan struct{}) {
	if l := g.losses[lost]; l != nil {
		if l.sockets--; l.sockets == 0 {
			close(l.stop)
			delete(g.losses, lost)
		}
	}
}

// losers returns the sockets of a channel that was closed. For later sockets watch calls
// lose.
func (g *Guard) losers(lost <-chan struct{}) (losers []*Socket) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if l := g.losses[lost]; l != nil {
		l.lost = true
	}
	for s := range g.sockets {
		if s.slot.Lost() == lost {
			losers = append(losers, s)
		}
	}
	return losers
}

func (s *Socket) lose() { s.notify(Event{Kind: EventLost}) }
