// Package holds is between the guard of package nethttp, which decides, and the guard of package
// websocketmw. The latter is built on the former, because it holds slots for longer than a request.
package holds

import (
	"net/http"

	"github.com/headgate/headgate/internal/old/core"
)

// An Attempt is to hold slots for something that outlives the decision. Its methods are called in
// this order, by one goroutine.
type Attempt interface {
	// Begin is called before anything is charged. An error refuses the request with the status.
	Begin() (status int, err error)

	// Claim gets the claims when all keys are known, before anything is charged. An error
	// refuses the request with the status.
	Claim(claims []core.Claim) (status int, err error)

	// Hold gets the slots. An error refuses the request, and the slots are released.
	Hold(claims []core.Claim, slot *core.Slot) (Held, error)

	// Refused gets the reason why there are no slots.
	Refused(claims []core.Claim, err error)

	// Spare is called in shadow mode for a request that would be refused, and holds no slot.
	// An error refuses the request with the status.
	Spare() (held Held, status int, err error)
}

// Held holds the slots of a request that was admitted.
type Held interface {
	// Serve calls next. It sets fields in the header of the response, and calls end with the
	// outcome when next returns or panics.
	Serve(w http.ResponseWriter, r *http.Request, next http.Handler, fields func(http.Header), end func(status int, written int64, hijacked bool))

	// End releases the slots, unless Serve was called.
	End()
}
