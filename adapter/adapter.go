// Package adapter is for authors of adapters, which put guards in front of the handlers of a
// framework whose contexts hold more than the request. It has what packages ginmw, echomw and
// echov5mw share. Programs that use these do not need it.
//
// The page docs/adapters.md of the repository writes an adapter.
package adapter

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"

	"github.com/headgate/headgate/internal/fault"
	"github.com/headgate/headgate/keyfuncs"
)

// A Key returns the key that is charged from a framework's context, by the contract of
// [keyfuncs.Func]: never an empty key without an error, and [keyfuncs.ErrAbsent] if the
// context does not contain what is charged. It must be safe for concurrent use.
type Key[C any] func(C) (string, error)

// A Framework is a framework with contexts of type C. Its methods are safe for concurrent
// use. Literals name the fields, and both are required.
type Framework[C any] struct {
	// Name is that of the adapter's package, for errors.
	Name string

	// Request returns the request of a context.
	Request func(C) *http.Request
}

// Key returns the key of a function of package keyfuncs. It panics if fn is nil.
func (f Framework[C]) Key(fn keyfuncs.Func) Key[C] {
	if fn == nil {
		panic("headgate: " + f.Name + ": Request: the function is nil")
	}
	return func(c C) (string, error) { return fn(f.Request(c)) }
}

// Text returns the text that get returns, which errors call thing. An empty one is
// [keyfuncs.ErrAbsent].
func (Framework[C]) Text(thing string, get func(C) string) Key[C] {
	errAbsent := fmt.Errorf("%w: %s", keyfuncs.ErrAbsent, thing)
	return func(c C) (string, error) {
		if text := get(c); text != "" {
			return text, nil
		}
		return "", errAbsent
	}
}

// Value returns the text of the value that get returns, which errors call thing. It must be
// of a type that [keyfuncs.Context] accepts. A value that is nil or has an empty text is
// [keyfuncs.ErrAbsent], one of another type [keyfuncs.ErrProgram].
func (f Framework[C]) Value(thing string, get func(C) any) Key[C] {
	type key struct{}
	fn := keyfuncs.Context(key{})
	text := f.Text(thing, func(c C) string {
		s, _ := get(c).(string)
		return s
	})
	return func(c C) (string, error) {
		value := get(c)
		if _, ok := value.(string); ok || value == nil {
			return text(c)
		}
		// Package keyfuncs knows which types have a text.
		r := f.Request(c)
		s, err := fn(r.WithContext(context.WithValue(r.Context(), key{}, value)))
		if err != nil {
			return "", fault.Wrap(f.Name+": "+thing, err)
		}
		return s, nil
	}
}

// All returns the combination of keys, like [keyfuncs.All]. It panics if there is none, or a
// nil one.
func (f Framework[C]) All(keys ...Key[C]) Key[C] { return f.compose("All", keyfuncs.All, keys) }

// First returns the first of the keys that a context has, like [keyfuncs.First]. It panics if
// there is none, or a nil one.
func (f Framework[C]) First(keys ...Key[C]) Key[C] { return f.compose("First", keyfuncs.First, keys) }

// compose calls package keyfuncs, so that keys have the same form everywhere. The functions
// that keyfuncs combines get only a request, so each combination has a field for the context,
// and is used by one request at a time.
func (f Framework[C]) compose(name string, how func(...keyfuncs.Func) keyfuncs.Func, keys []Key[C]) Key[C] {
	keys = f.Keys(name, keys...)
	type combination struct {
		c   C
		key keyfuncs.Func
	}
	pool := sync.Pool{New: func() any {
		one := &combination{}
		fns := make([]keyfuncs.Func, len(keys))
		for i, key := range keys {
			fns[i] = func(*http.Request) (string, error) { return key(one.c) }
		}
		one.key = how(fns...)
		return one
	}}
	return func(c C) (string, error) {
		one := pool.Get().(*combination)
		one.c = c
		key, err := one.key(f.Request(c))
		one.c = *new(C)
		pool.Put(one)
		return key, err
	}
}

// By returns what the CheckTo and CheckKeys of guards take: the keys of c, or nil if there are
// none.
func By[C any](keys []Key[C], c C) func(rule int) (string, error) {
	if keys == nil {
		return nil
	}
	return func(rule int) (string, error) { return keys[rule](c) }
}

// Count returns what the Mount of guards takes: the number of keys, or -1 if keys is nil.
func Count[C any](keys []Key[C]) int {
	if keys == nil {
		return -1
	}
	return len(keys)
}

// Keys returns a copy of the keys that the adapter's function of that name was called with. It
// panics if there is none, or a nil one.
func (f Framework[C]) Keys(function string, keys ...Key[C]) []Key[C] {
	if len(keys) == 0 {
		panic("headgate: " + f.Name + ": " + function + ": no key")
	}
	for i, key := range keys {
		if key == nil {
			panic("headgate: " + f.Name + ": " + function + ": key " + strconv.Itoa(i) + " is nil")
		}
	}
	return slices.Clone(keys)
}

// contextKey is the key of a framework's context in that of a request.
type contextKey[C any] struct{}

// With returns the request of c with c in its context, for [Framework.Context].
func (f Framework[C]) With(c C) *http.Request {
	r := f.Request(c)
	return r.WithContext(context.WithValue(r.Context(), contextKey[C]{}, c))
}

// Context returns the framework's context that [Framework.With] put into the request's, or the
// zero C.
func (Framework[C]) Context(r *http.Request) C {
	c, _ := r.Context().Value(contextKey[C]{}).(C)
	return c
}
