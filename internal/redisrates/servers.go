package redisrates

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/rediskey"
	"github.com/headgate/headgate/internal/step"
)

// servers are the server, or the masters of a Cluster. Many goroutines ask it at once: the map that they read is
// replaced, and never changed.
type servers struct {
	names   *rediskey.Names
	cluster *redis.ClusterClient // nil: there is one address
	changed func(reason error)

	// tableLoaded is that the client has its table of masters. Before, to ask it for one would be a call.
	tableLoaded atomic.Bool

	// checksHashSlots is that the server behind the one address does: it is a server of a Cluster, or a service that
	// hides one.
	checksHashSlots atomic.Bool

	// first is the only server, and stands for all masters until the table is loaded.
	first server

	mu        sync.Mutex // held to replace byAddress
	byAddress atomic.Pointer[map[string]*server]

	// reloads is how often the table was asked for since the last time that it was not. 0: it is not being loaded.
	reloads atomic.Int64
}

// of returns the server to which the client sends the commands of a key, and the hash slot. It makes no call.
func (ss *servers) of(cell *step.Cell) (to *server, hashSlot int) {
	if !ss.hasHashSlots() {
		return &ss.first, noHashSlot
	}
	// What is in the braces of a name is all that counts: the values of a key are together, whatever their policies.
	tag := ss.names.AppendTag(make([]byte, 0, 64), cell.Key.Reveal())
	hashSlot = rediskey.HashSlot(tag)
	if ss.cluster == nil || !ss.tableLoaded.Load() {
		return &ss.first, hashSlot
	}
	// Once the table is loaded, this only reads it, even while it is reloaded.
	master, err := ss.cluster.MasterForKey(context.Background(), string(tag))
	if err != nil {
		return &ss.first, hashSlot
	}
	// Each master has a queue of its own, so that one that is slow or away delays only its own keys. The map is copied
	// when a master is new, so that nobody else takes a lock.
	address := master.Options().Addr
	server := ss.masters()[address]
	if server != nil {
		return server, hashSlot
	}
	return ss.add(address), hashSlot
}

// hasHashSlots reports whether a call may have keys of one hash slot only.
func (ss *servers) hasHashSlots() bool { return ss.cluster != nil || ss.checksHashSlots.Load() }

func (ss *servers) masters() map[string]*server { return *ss.byAddress.Load() }

// add adds a master. If it has come in the place of another, that one is soon forgotten.
func (ss *servers) add(address string) *server {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	masters := ss.masters()
	if masters[address] != nil { // somebody was faster
		return masters[address]
	}
	grown := maps.Clone(masters)
	grown[address] = new(server)
	ss.byAddress.Store(&grown)
	ss.reload()
	return grown[address]
}

// reload has the client load its table of masters, in the background. Of itself it does that once a minute, and when a
// server says that a hash slot has moved: but one that is away says nothing, nor is it asked.
func (ss *servers) reload() {
	if ss.cluster == nil || ss.reloads.Add(1) > 1 {
		return
	}
	go func() {
		for {
			asked := ss.reloads.Load()
			ss.loadTable()
			// However many servers are away, and however many masters are new, nobody is asked for it more often.
			<-time.After(maxPause)
			// Who has asked meanwhile may have known more than the table: it is loaded once more.
			if ss.reloads.Add(-asked) == 0 {
				return
			}
		}
	}()
}

// loadTable loads the table of masters, and forgets servers that are none: their addresses may never come back, and
// nobody would ever find that they are no longer away. It takes no longer than the timeouts of the client allow. With a
// deadline, one server that is silent would be enough for the client to give up on all of them.
func (ss *servers) loadTable() {
	var mu sync.Mutex
	addresses := make(map[string]bool)
	err := ss.cluster.ForEachMaster(context.Background(), func(_ context.Context, master *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		addresses[master.Options().Addr] = true
		return nil
	})
	if err != nil || len(addresses) == 0 { // a server that was taken out of the Cluster knows no masters
		return
	}
	ss.tableLoaded.Store(true)
	for _, server := range append(ss.remove(addresses), &ss.first) {
		if server.retire() {
			ss.changed(nil)
		}
	}
}

// remove takes out those that have none of the addresses, and returns them.
func (ss *servers) remove(addresses map[string]bool) (removed []*server) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	rest := maps.Clone(ss.masters())
	for address, server := range rest {
		if !addresses[address] {
			removed = append(removed, server)
			delete(rest, address)
		}
	}
	ss.byAddress.Store(&rest)
	return removed
}

// retire notes that the server is no master any more, and reports whether it was away. Calls that are in flight are
// answered, but change nothing.
func (to *server) retire() (wasAway bool) {
	wasOpen := to.breaker.retire()
	wasUnserved := to.unserved.retire()
	return wasOpen || wasUnserved
}

// learn notes that the client has loaded its table: it has sent a command.
func (ss *servers) learn() {
	if ss.cluster != nil && !ss.tableLoaded.Load() {
		ss.tableLoaded.Store(true)
	}
}

// away returns why one of them is not asked, or not about all hash slots, or nil.
func (ss *servers) away() error {
	for _, server := range slices.AppendSeq([]*server{&ss.first}, maps.Values(ss.masters())) {
		if err := cmp.Or(server.breaker.away(), server.unserved.away()); err != nil {
			return err
		}
	}
	return nil
}

// A hashSlotError is that of a question whose hash slot, or hash slots, a server did not serve: it has run nothing.
type hashSlotError struct {
	error

	deadline time.Time // of the question
}

func (e hashSlotError) Unwrap() error { return e.error }

// maxPassing is for how long a hash slot may be about to move, before that is told.
const maxPassing = time.Second

// unserved are the hash slots of which a server was asked and which it does not serve. Of their keys the failure policy
// decides, of others the server. The zero value is ready to use.
type unserved struct {
	any atomic.Bool // whether there are some

	mu           sync.Mutex
	hashSlots    map[int]bool
	firstFailure time.Time
	lastFailure  time.Time
	reason       error // that was told
}

// failed notes an error about a hash slot, and reports whether it is to be told. That is once, whatever the slots.
func (u *unserved) failed(hashSlot int, err error, passing bool, now time.Time) (tell bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	// After a while without any, a failure is the first of a new series.
	if u.reason == nil && now.Sub(u.lastFailure) > maxPassing {
		u.firstFailure = now
	}
	u.lastFailure = now
	if u.hashSlots == nil {
		u.hashSlots = make(map[int]bool)
	}
	u.hashSlots[hashSlot] = true
	u.any.Store(true)
	if u.reason != nil || passing && now.Sub(u.firstFailure) < maxPassing {
		return false
	}
	u.reason = err
	return true
}

// answered notes an answer about a hash slot, and reports whether what was told is over: one that was not served is,
// and none has failed for a while. One answer alone is not enough, since slots come back one after the other.
func (u *unserved) answered(hashSlot int, now time.Time) (over bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.hashSlots[hashSlot] || now.Sub(u.lastFailure) < maxPassing {
		return false
	}
	over = u.reason != nil
	u.hashSlots = nil
	u.reason = nil
	u.any.Store(false)
	return over
}

// retire forgets all, and reports whether something was told that is over.
func (u *unserved) retire() (over bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	over = u.reason != nil
	u.hashSlots = nil
	u.reason = nil
	u.lastFailure = time.Time{}
	u.any.Store(false)
	return over
}

// away returns what was told, or nil.
func (u *unserved) away() error {
	if !u.any.Load() {
		return nil
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.reason
}
