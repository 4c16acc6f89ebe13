// What a program may ask all servers. It may not touch sockets: package fleet does.

package websocketmw

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/headgate/headgate/websocketmw/internal/fleet"
)

// A Presence has the sockets of a key on all servers.
type Presence struct {
	// Held is the number of slots that the key holds in all processes, before anything is
	// closed. They may be more than the sockets that are found: other processes may hold
	// slots of the same name.
	Held int64

	// Open is the number of sockets on the servers that answered. They are listed, or being closed.
	// Some may have given up their slots, and not ended yet.
	Open int

	// Peers are the sockets, the oldest first; of each guard at most the 100 oldest.
	Peers []Peer

	// Silent has the number of slots of the key for each process that has not answered in time.
	// Such a process is dead for less than a TTL, cut off, or paused, or its guard has no
	// [Config].Server. If it reaches the store within a minute, it closes the sockets that it was
	// told to close.
	Silent []int64
}

// A Peer is a socket on any server.
type Peer struct {
	Server string    // its Config.Server
	Since  time.Time // when it was admitted, by this server's clock
}

var errServer = errors.New("headgate: websocketmw: Config.Server is empty: set it in all servers")

// Presence returns the sockets of the key on all servers whose guards have a
// [Config].Server, under the rule whose slots have that name. It waits until all processes have
// answered that hold slots of the key, which over Redis takes some 0.3 seconds, and at most 2
// seconds.
//
// After an error, the Presence has only the sockets of this process. The error is
// [core.ErrUnavailable] or the error of ctx. The key is the one that the rule counts, as
// [nethttp.Rule].Plan gets it.
func (g *Guard) Presence(ctx context.Context, slots, key string) (Presence, error) {
	return g.presence(slots, func() (fleet.Presence, error) { return g.fleet.List(ctx, slots, key) })
}

// CloseAll closes all sockets of the key on all servers, as [Socket.Close] does: when a user
// logs out, or is banned. Other servers hear of it within a quarter of a second and the
// time that the store takes. CloseAll waits as Presence does. The Peers are the sockets that
// are being closed.
//
// First forbid new sockets, then call CloseAll. It closes the sockets of handshakes that arrived at
// their guards before the call, even if they are admitted later. Sockets of later handshakes stay
// open. If authentication is in front of the guard, let the handler check the user once more.
// CloseAll finds every socket whose handler runs.
//
// If the store loses the notice while CloseAll waits, it is announced again. A server that
// cannot reach the store closes its sockets when it can again, if that is within a minute. After
// a minute the notice is forgotten, and so is its reason. If there are Silent, call CloseAll again.
func (g *Guard) CloseAll(ctx context.Context, slots, key string, code int, reason string) (Presence, error) {
	return g.presence(slots, func() (fleet.Presence, error) { return g.fleet.CloseAll(ctx, slots, key, code, reason) })
}

// presence asks the fleet about the slots of a name.
func (g *Guard) presence(slots string, ask func() (fleet.Presence, error)) (p Presence, err error) {
	if g.config.Server == "" {
		return p, errServer
	}
	if !g.fleet.HasBoard(slots) {
		return p, fmt.Errorf("headgate: websocketmw: no rule has slots of the name %q", slots)
	}
	found, err := ask()
	p.Held, p.Open, p.Silent = found.Held, found.Open, found.Silent
	for _, one := range found.Peers {
		p.Peers = append(p.Peers, Peer(one))
	}
	return p, err
}
