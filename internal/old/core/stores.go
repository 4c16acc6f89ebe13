package core

import (
	"context"
	"errors"
	"slices"

	"github.com/headgate/headgate/internal/old/core/store"
)

// askStores asks several stores, of which at most one is shared, for all claims or none. The
// shared one is the last: what others have taken before is given back at once.
func askStores(ctx context.Context, claims []Claim, asked []store.Claim) (store.Grant, error) {
	var stores []SlotStore
	for _, c := range claims {
		if s := c.Slots.store; !slices.Contains(stores, s) {
			stores = append(stores, s)
		}
	}
	if i := slices.IndexFunc(stores, SlotStore.Shared); i >= 0 {
		shared := stores[i]
		stores = append(slices.Delete(stores, i, i+1), shared)
	}
	all := store.Grant{Occupancies: make([]store.Occupancy, len(asked))}
	taken, done := make(stack, 0, len(stores)), false
	defer func() {
		if !done {
			taken.Release()
		}
	}()
	for _, s := range stores {
		var part []store.Claim
		var places []int // of part in asked
		for i, c := range claims {
			if c.Slots.store == s {
				part, places = append(part, asked[i]), append(places, i)
			}
		}
		g, err := s.AcquireSlots(ctx, part)
		if err != nil {
			return store.Grant{}, moved(err, places)
		}
		taken = append(taken, g.Hold)
		all.Source = g.Source
		for i, o := range g.Occupancies {
			all.Occupancies[places[i]] = o
		}
	}
	done = true
	all.Hold = taken
	return all, nil
}

// moved returns the error about a part of the claims as one about all of them.
func moved(err error, places []int) error {
	var full *store.FullError
	if !errors.As(err, &full) {
		return err
	}
	there := *full
	there.Claim = places[full.Claim]
	return &there
}

// A stack is the holds of several stores. Only the last can be lost, as the
// other stores are not shared.
type stack []store.Hold

func (st stack) last() store.Hold { return st[len(st)-1] }

// Release implements [store.Hold].
func (st stack) Release() {
	for _, h := range st {
		h.Release()
	}
}

// Lost implements [store.Hold].
func (st stack) Lost() <-chan struct{} { return st.last().Lost() }
