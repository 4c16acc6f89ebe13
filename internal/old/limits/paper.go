package limits

import (
	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/store"
)

// paper is a store on paper: limits are made with it to find their faults, and never asked.
type paper struct{ store.Store }

// Prepare implements [store.Store].
func (paper) Prepare(*store.Limiter) error { return nil }

// Observer implements [store.Store].
func (paper) Observer() *core.Observer { return nil }
