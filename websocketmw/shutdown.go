// The end of a guard: who is closed when, and how long that may take. It may not add or remove a
// socket.

package websocketmw

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/headgate/headgate/websocketmw/internal/conn"
)

// Shutdown closes all sockets, and refuses upgrades with 503 from then on. It sends each socket a
// Close frame with the ShutdownCode of [Config], all at once or spread over its Drain. Then it
// waits until the handlers have closed their sockets, 5 seconds have passed or ctx is done. It
// closes the connections that are left. Then it closes the slots of the rules, so that they are
// free for other servers at once. A slow store may take 5 seconds for that, even if ctx is done.
//
// All guards of this process with one name and store share their slots. So shut such guards down
// together: after the first, the open sockets of the others do not count.
//
// Call it before [http.Server.Shutdown], which does not close hijacked connections. The error
// joins the cause of ctx, if it was done first, and the errors of closing the slots. Shutdown may be
// called again, and waits again.
func (g *Guard) Shutdown(ctx context.Context) error {
	g.fleet.Drain()
	g.closeAll(ctx)
	timer := time.NewTimer(conn.CloseTimeout) // for handlers that neither upgrade nor return
	defer timer.Stop()
	var late error
	select {
	case <-g.fleet.Empty():
	case <-timer.C:
	case <-ctx.Done():
		late = context.Cause(ctx)
	}
	for _, s := range g.all() {
		s.life.Cut()
	}
	g.fleet.Rest()
	// ctx limits only the wait: the slots are closed even if it is done.
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), conn.CloseTimeout)
	defer cancel()
	faults := make([]error, len(g.slotRules))
	var all sync.WaitGroup
	for i := range g.slotRules { // at once: the store may be slow
		slots := slotsOf(&g.slotRules[i])
		all.Go(func() { faults[i] = slots.Close(closing) })
	}
	all.Wait()
	return errors.Join(late, errors.Join(faults...))
}

// closeAll begins to close all sockets, in the time of Config.Drain.
func (g *Guard) closeAll(ctx context.Context) {
	all, start := g.all(), time.Now()
	if g.config.Drain > 0 {
		slices.SortFunc(all, func(a, b *Socket) int { return a.Since().Compare(b.Since()) })
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for i, s := range all {
		if at := start.Add(time.Duration(float64(g.config.Drain) * float64(i) / float64(len(all)))); ctx.Err() == nil && time.Until(at) > 0 {
			timer.Reset(time.Until(at))
			select {
			case <-timer.C:
			case <-g.fleet.Empty():
			case <-ctx.Done():
			}
		}
		s.life.Leave(g.config.ShutdownCode, "the server is shutting down")
	}
}
