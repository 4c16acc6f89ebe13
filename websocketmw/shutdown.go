package websocketmw

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/headgate/headgate/internal/backend"
	"github.com/headgate/headgate/websocketmw/internal/frames"
)

// Shutdown refuses all upgrades from now on with 503, and closes all sockets with 1001 and ErrShutdown, in the time of
// Config.Drain, the oldest first. It returns when all are closed and OnClosed has returned. When the last Close frame
// is 5 seconds old or ctx is done, it closes the connections that are left, without waiting for them.
//
// Then it closes the slots of the rules (see [core.Slots.Close]), also for other guards that have them, for 5 seconds
// at most. The error joins theirs, and the cause of ctx if that was done before the sockets were closed.
//
// Call Shutdown before [http.Server.Shutdown], which neither closes WebSockets nor waits for them.
func (g *Guard) Shutdown(ctx context.Context) error {
	if ctx == nil {
		return backend.ErrNoContext
	}
	g.drain()
	g.closeSockets(ctx)
	timer := time.NewTimer(closeTimeout) // for handlers that neither upgrade nor return
	defer timer.Stop()
	var late error
	select {
	case <-g.empty:
	case <-timer.C:
	case <-ctx.Done():
		late = context.Cause(ctx)
	}
	for _, socket := range g.oldestFirst() {
		go socket.end() //nolint:errcheck // TLS may take seconds
	}
	return errors.Join(late, g.closeSlots(ctx))
}

func (g *Guard) closeSlots(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	errs := make([]error, len(g.indexes))
	var calls sync.WaitGroup
	for i := range g.indexes {
		calls.Go(func() { errs[i] = g.indexes[i].slots.Close(ctx) })
	}
	calls.Wait() // all at once: a store that is away must not take the time of the others
	return errors.Join(errs...)
}

// closeSockets begins to close all sockets, in the time of Config.Drain, the oldest first.
func (g *Guard) closeSockets(ctx context.Context) {
	all := g.oldestFirst()
	start := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for i, socket := range all {
		// By the clock, and not by pauses, which would add up: there may be a hundred thousand sockets.
		closesAt := start.Add(time.Duration(float64(g.config.Drain) * float64(i) / float64(len(all))))
		pause := time.Until(closesAt)
		if pause > 0 {
			timer.Reset(pause)
			select {
			case <-timer.C:
			case <-g.empty:
			case <-ctx.Done():
			}
		}
		socket.close(ErrShutdown, frames.CodeGoingAway, "the server is shutting down")
	}
}

// drain admits no socket from now on.
func (g *Guard) drain() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.draining {
		g.draining = true
		g.stopIfEmpty()
	}
}
