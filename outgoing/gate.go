package outgoing

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/headgate/headgate/internal/backend"
	"github.com/headgate/headgate/internal/step"
	"github.com/headgate/headgate/internal/store"
)

const (
	// blockPolicy is the policy that a Transport adds to those of its limiter.
	blockPolicy = "server"

	// maxGates is how many gates are remembered: a document that is loaded again has others.
	maxGates = 64

	// blockTries is how often a block looks again when others have blocked the key at once.
	blockTries = 8
)

// A gate is a limiter with one policy more: a bucket whose units are microseconds. Requests charge it nothing, and pass
// unless it is in debt. To block a key for a time is to report so many units.
//
//	the server asks for 2 s     Settle: some 2,000,000 units more, so the bucket is in debt
//	a request of the key        waits for the policies of the limiter and for this bucket, in one question
type gate struct {
	limiter *backend.Limiter
	server  *step.Policy // nil: nothing passes that a server could answer
}

func newGate(limiter *backend.Limiter, own *backend.Policies) (*gate, error) {
	if own.Constant && own.Max == 0 {
		return &gate{limiter: limiter.Constant(own)}, nil
	}
	var faults []error
	// A unit flows back in a microsecond, and the debt has room for two blocks at once: see block.
	block := backend.Prepare(limiter.Name(), []backend.Policy{{Name: blockPolicy, Numbers: step.Numbers{
		Kind: step.TokenBucket, Limit: 1, Period: 1, Burst: 1, Debt: 2 * longestBlock.Microseconds(),
	}}}, func(_ int, err error) { faults = append(faults, err) })
	all := &backend.Policies{Max: own.Max}
	if !own.Constant { // Unlimited must be alone
		all.List = slices.Clone(own.List)
		all.List[len(all.List)-1].Last = false
	}
	isTaken := slices.ContainsFunc(all.List, func(policy step.Policy) bool { return policy.Name == blockPolicy })
	if isTaken || len(all.List) == backend.MaxPolicies {
		const fault = "it has at most %d policies, none of them named %q"
		faults = append(faults, fmt.Errorf(fault, backend.MaxPolicies-1, blockPolicy))
	}
	// In one list with the others, so that one question asks them all, and none is charged for a request that waits.
	all.List = append(all.List, block.List[0])
	server := &all.List[len(all.List)-1]
	server.Free = true
	faults = append(faults, limiter.Stores().Rates.Prepare(all.List[len(all.List)-1:]))
	return &gate{limiter.Constant(all), server}, errors.Join(faults...)
}

// block lets nobody of a key through for so many microseconds. Of several times the longest applies: what others have
// blocked meanwhile is given back. It reports whether the store sees to it. The first look spares a write for the many
// refusals that come while the key is blocked already.
func (g *gate) block(ctx context.Context, key string, units int64) bool {
	if g.server == nil {
		return true
	}
	var cell step.Cell
	cell.Set(g.server, key, step.Hash(key), 0)
	cells := []step.Cell{cell}
	rates := g.limiter.Stores().Rates
	start := time.Now()
	var err error
	for range blockTries {
		left := units - time.Since(start).Microseconds()
		cells[0] = cell
		_, err = rates.Ask(ctx, step.Peek, cells)
		missing := left - cells[0].RetryAfter
		if err != nil || missing <= 0 || cells[0].Source == step.SourceOpen {
			break
		}
		cells[0] = cell
		cells[0].Units = missing
		_, err = rates.Ask(ctx, step.Settle, cells)
		surplus := min(cells[0].RetryAfter-1-units, missing) // a report's RetryAfter is until there is a unit
		if err != nil || surplus <= 0 {
			break
		}
		// Others have blocked the key since the look. They may give that back, so it is looked at again.
		cells[0].Units = -surplus
		if _, err = rates.Ask(ctx, step.Settle, cells); err != nil {
			break
		}
	}
	isKept := err == nil && cells[0].Source != step.SourceOpen
	observer := g.limiter.Stores().Observer
	if !isKept && observer != nil && observer.Decided != nil {
		observer.Decided(ctx, store.DecisionEvent{
			Limiter: g.limiter.Name(), Units: units, Source: cells[0].Source, Err: err,
		})
	}
	return isKept
}
