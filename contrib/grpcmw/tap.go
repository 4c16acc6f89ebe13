package grpcmw

import (
	"context"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/tap"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/lease"
	"github.com/headgate/headgate/core/memstore"
)

// Tap returns a handle that decides about calls before they take memory and a goroutine:
//
//	grpc.NewServer(grpc.InTapHandle(guard.Tap()))
//
// It is called in the loop that reads a connection, and must not wait. So all its Rules have a Limiter
// whose store is a [memstore.Store] or a [lease.Store]; with leases, a call waits if nothing is leased.
// It knows no message, calls cannot be settled, and the metadata of responses are not set: a refusal has
// the details of its status. Tap panics if the guard has rules that it cannot apply.
//
// Do not use the guard of a Tap for interceptors too: calls would be charged twice.
func (g *Guard) Tap() tap.ServerInHandle {
	for _, rule := range g.config.Rules {
		if rule.Limiter == nil || rule.Settle != nil || rule.Report != nil || !inMemory(rule.Limiter.Store()) {
			panic("headgate: grpcmw: a Tap must not wait: its rules have a Limiter over a memstore or leases, and neither Settle nor Report")
		}
	}
	if len(g.config.Messages) > 0 {
		panic("headgate: grpcmw: a Tap sees no messages")
	}
	return func(ctx context.Context, info *tap.Info) (context.Context, error) {
		v := g.guard.Enter(ctx, callOf(metadata.NewIncomingContext(ctx, info.Header), info.FullMethodName))
		if v.Refusal != nil {
			return nil, statusOf(v.Refusal).Err()
		}
		return ctx, nil
	}
}

func inMemory(s core.Store) bool {
	switch s.(type) {
	case *memstore.Store, *lease.Store:
		return true
	}
	return false
}
