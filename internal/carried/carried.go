// Package carried knows whether functions of a guard use what an adapter lets a request carry: the
// context of its framework. Requests carry it for every unknown function, so no decision depends on
// this knowledge. It saves two allocations for functions that never use the context. Where a guard
// is mounted without an adapter, it finds functions that always do.
package carried

import (
	"reflect"
	"sync"
)

// uses has whether functions use what is carried, by the addresses of their code.
var uses sync.Map

// Unused marks a function that never uses the carried context, and returns it. The line that makes
// the function must not make any that are not marked alike.
func Unused[F any](fn F) F {
	uses.Store(reflect.ValueOf(fn).Pointer(), false)
	return fn
}

// Required marks a function that is useless without the carried context, and returns it. The line
// that makes the function must not make any that are not marked alike.
func Required[F any](fn F) F {
	uses.Store(reflect.ValueOf(fn).Pointer(), true)
	return fn
}

// IsUnused reports whether the function is nil or marked by [Unused].
func IsUnused(fn any) bool {
	address := reflect.ValueOf(fn).Pointer()
	used, known := uses.Load(address)
	return address == 0 || known && used == false
}

// IsRequired reports whether the function is marked by [Required].
func IsRequired(fn any) bool {
	used, _ := uses.Load(reflect.ValueOf(fn).Pointer())
	return used == true
}
