package websocketmw

// A loss watches a channel of core.Slot.Lost, which many slots may share.
type loss struct {
	sockets int
	stop    chan struct{} // closed when there are none any more
	told    bool
}

// watch has a socket told when its slots are lost. The guard is locked.
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
	case l.told:
		go s.lose()
	}
	l.sockets++
}

// unwatch counts a socket less. The guard is locked.
func (g *Guard) unwatch(lost <-chan struct{}) {
	if l := g.losses[lost]; l != nil {
		if l.sockets--; l.sockets == 0 {
			close(l.stop)
			delete(g.losses, lost)
		}
	}
}

// losers are the sockets of a channel that was closed. Those who come later are told
// by watch.
func (g *Guard) losers(lost <-chan struct{}) (those []*Socket) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if l := g.losses[lost]; l != nil {
		l.told = true
	}
	for s := range g.sockets {
		if s.slot.Lost() == lost {
			those = append(those, s)
		}
	}
	return those
}

func (s *Socket) lose() {
	s.notify(Event{Kind: EventLost})
	if s.guard.config.OnLost == Shed {
		s.Close(codeTryAgain, "the place was lost; try again later")
	}
}
