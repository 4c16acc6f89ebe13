// Package carried knows the key functions that need what an adapter lets a request carry: the
// context of its framework. So a guard with such a key can tell where it is mounted that nothing
// will be carried there, and others need not carry anything.
package carried

import (
	"reflect"
	"sync"
)

// lines are the addresses of the code of such functions.
var lines sync.Map //nolint:gochecknoglobals // functions have no place for a mark

// Mark marks a function and returns it. The line that makes the function must not make any that
// are not marked.
func Mark[F any](fn F) F {
	lines.Store(reflect.ValueOf(fn).Pointer(), true)
	return fn
}

// Is reports whether a function is marked.
func Is(fn any) bool {
	_, ok := lines.Load(reflect.ValueOf(fn).Pointer())
	return ok
}
