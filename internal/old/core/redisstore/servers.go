package redisstore

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/old/core/internal/remote"
)

// servers are the server, or the masters of a Cluster.
type servers struct {
	cluster *redis.ClusterClient // nil: there is one server
	known   atomic.Bool          // the client has loaded its table of masters

	// first is the only server, and stands for all masters until the table is loaded.
	first remote.Server

	mu        sync.Mutex // held to replace byAddress
	byAddress atomic.Pointer[map[string]*remote.Server]
}

// of returns the server to which the client sends the commands of a key of that name. It
// makes no call.
func (ss *servers) of(name string) *remote.Server {
	if ss.cluster == nil || !ss.known.Load() {
		return &ss.first
	}
	// Once the table is loaded, this only reads it, even while it is reloaded.
	master, err := ss.cluster.MasterForKey(context.Background(), name)
	if err != nil {
		return &ss.first
	}
	address := master.Options().Addr
	if server := ss.masters()[address]; server != nil {
		return server
	}
	return ss.add(address)
}

func (ss *servers) masters() map[string]*remote.Server {
	if m := ss.byAddress.Load(); m != nil {
		return *m
	}
	return nil
}

func (ss *servers) add(address string) *remote.Server {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	old := ss.masters()
	if server := old[address]; server != nil {
		return server
	}
	grown := make(map[string]*remote.Server, len(old)+1)
	maps.Copy(grown, old)
	grown[address] = new(remote.Server)
	ss.byAddress.Store(&grown)
	return grown[address]
}

// learn notes that the client has loaded its table: it has sent a command.
func (ss *servers) learn() {
	if ss.cluster != nil && !ss.known.Load() {
		ss.known.Store(true)
	}
}

func (ss *servers) all() []*remote.Server {
	return slices.AppendSeq([]*remote.Server{&ss.first}, maps.Values(ss.masters()))
}
