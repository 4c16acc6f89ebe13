package limits

import (
	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/store"
)

// paper is a store on paper: limits are made with it to find their faults, and never asked.
type paper struct{ store.Store }

// paperLimiter is a limiter of it.
type paperLimiter store.Spec

// Spec implements [store.Limiter].
func (l *paperLimiter) Spec() *store.Spec { return (*store.Spec)(l) }

// Prepare implements [store.Store].
func (paper) Prepare(s store.Spec) (store.Limiter, error) { return (*paperLimiter)(&s), nil }

// Observer implements [store.Store].
func (paper) Observer() *core.Observer { return nil }

// paperSlots is paper for slots.
type paperSlots struct{ store.SlotStore }

// Observer implements [store.SlotStore].
func (paperSlots) Observer() *core.Observer { return nil }
