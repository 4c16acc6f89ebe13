// Package adapter is for authors of adapters, which put guards in front of the handlers of a
// framework whose contexts hold more than the request. It has what packages ginmw, echomw and
// echov5mw share. Programs that use these do not need it.
//
// The page docs/frameworks.md of the repository says what an adapter must take care of.
package adapter

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/headgate/headgate/internal/carried"
	"github.com/headgate/headgate/internal/keytext"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// A Guard is a guard of any package: of nethttp, for the request, or of websocketmw, for the socket.
type Guard interface {
	// Mount is called once, where the guard is mounted.
	Mount(abilities ...nethttp.Ability) (carries bool)

	// Check decides about a request.
	Check(r *http.Request) nethttp.Verdict

	// Refuse answers a request that is not admitted.
	Refuse(w http.ResponseWriter, r *http.Request, v nethttp.Verdict)
}

// Mount mounts a guard for an adapter that can end verdicts and serve sockets. It panics if the
// guard is nil. It reports whether requests should carry the framework's context.
func Mount(guard Guard) (carries bool) {
	if guard == nil {
		panic("headgate: guard: the guard is nil: see the error of New")
	}
	return guard.Mount(nethttp.Ends | nethttp.Upgrades)
}

// A Framework is a framework with contexts of type C. An adapter has one variable of it, whose
// literal names the fields, which are all required. Its methods are safe for concurrent use.
type Framework[C any] struct {
	// Name is the name of the adapter's package, for errors.
	Name string

	// Request returns the request of a context.
	Request func(C) *http.Request

	// Get returns the value that the context stores under a name, or nil, and Set stores one.
	Get func(c C, name string) any
	Set func(c C, name string, value any)

	keeps atomic.Bool // whether there is a KeepVerdict
}

// Key returns a key from the framework's context, by the contract of [keyfuncs.Func]. The key may
// also be within [keyfuncs.All] and the like. A guard with such a key panics where it is mounted
// without an adapter. A request that did not pass the adapter is [keyfuncs.ErrProgram]. Key panics
// if get is nil.
func (f *Framework[C]) Key(get func(C) (string, error)) keyfuncs.Func {
	if get == nil {
		panic("headgate: " + f.Name + ": the key is nil")
	}
	errOutside := fmt.Errorf("%w: it is a key of %s, and the request did not pass a middleware of that package", keyfuncs.ErrProgram, f.Name)
	return carried.Required(keyfuncs.Func(func(r *http.Request) (string, error) {
		c, ok := f.find(r)
		if !ok {
			return "", errOutside
		}
		return get(c)
	}))
}

// Text returns the key that get returns, which errors call thing. An empty one is
// [keyfuncs.ErrAbsent].
func (f *Framework[C]) Text(thing string, get func(C) string) keyfuncs.Func {
	errAbsent := fmt.Errorf("%w: %s", keyfuncs.ErrAbsent, thing)
	return f.Key(func(c C) (string, error) {
		if text := get(c); text != "" {
			return text, nil
		}
		return "", errAbsent
	})
}

// Value returns the key that is the text of a value in the context. It must be of a type that
// [keyfuncs.Context] accepts. A value that is nil or has an empty text is
// [keyfuncs.ErrAbsent], one of another type [keyfuncs.ErrProgram].
func (f *Framework[C]) Value(name string) keyfuncs.Func {
	thing := "context value " + strconv.Quote(name)
	errAbsent := fmt.Errorf("%w: %s", keyfuncs.ErrAbsent, thing)
	return f.Key(func(c C) (string, error) {
		value := f.Get(c, name)
		text, ok := keytext.Of(value)
		if !ok {
			return "", fmt.Errorf("%w: %s: %s: no text in a %T", keyfuncs.ErrProgram, f.Name, thing, value)
		}
		if text == "" {
			return "", errAbsent
		}
		return text, nil
	})
}

// A carrier carries a framework's context in that of a request, until it has ended: frameworks
// use their contexts again.
type carrier[C any] struct {
	context.Context

	mu    sync.Mutex // as what handlers start may outlive them
	c     C
	ended bool
}

// carrierKey is the key of a carrier in itself.
type carrierKey[C any] struct{}

// Value implements [context.Context].
func (in *carrier[C]) Value(key any) any {
	if key == (carrierKey[C]{}) {
		return in
	}
	return in.Context.Value(key)
}

// find returns the framework's context in that of a request.
func (*Framework[C]) find(r *http.Request) (c C, ok bool) {
	in, ok := r.Context().Value(carrierKey[C]{}).(*carrier[C])
	if !ok {
		return c, false
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.c, !in.ended
}

// Context returns the framework's context of a request from [Framework.Enter] or
// [Framework.With], or the zero C.
func (f *Framework[C]) Context(r *http.Request) C {
	c, _ := f.find(r)
	return c
}

// With returns the request of c, with c in its context for keys and for [Framework.Context]. It
// must not be used after c.
func (f *Framework[C]) With(c C) *http.Request {
	r := f.Request(c)
	return r.WithContext(&carrier[C]{Context: r.Context(), c: c})
}

// A Visit is the passing of a request.
type Visit[C any] struct {
	// Request is for the guard.
	Request *http.Request

	in *carrier[C]
}

// Enter returns the request of c for a guard. It has c in its context, until the visit ends, if
// the guard's Mount says so; for others that would cost two allocations for nothing.
func (f *Framework[C]) Enter(c C, carries bool) Visit[C] {
	r := f.Request(c)
	if !carries {
		return Visit[C]{Request: r}
	}
	in := &carrier[C]{Context: r.Context(), c: c}
	return Visit[C]{r.WithContext(in), in}
}

// End ends the visit. It is to be called when the guard is done with the request.
func (v Visit[C]) End() {
	if v.in != nil {
		v.in.mu.Lock()
		defer v.in.mu.Unlock()
		v.in.c, v.in.ended = *new(C), true
	}
}

// kept is where the last verdict about a request is kept.
type kept struct {
	verdict nethttp.Verdict
	given   bool
}

// verdictName is the name of *kept in a framework's context.
const verdictName = "github.com/headgate/headgate/adapter.Verdict"

// KeepVerdict returns a function to be called with the context of each request whose verdicts
// are kept. Programs that do not use it do not look for the place in each context.
func (f *Framework[C]) KeepVerdict() func(C) {
	f.keeps.Store(true)
	return func(c C) { f.Set(c, verdictName, new(kept)) }
}

// Keeps reports whether there is a KeepVerdict: otherwise Keep does nothing.
func (f *Framework[C]) Keeps() bool { return f.keeps.Load() }

// Keep keeps a verdict, if that is wanted.
func (f *Framework[C]) Keep(c C, v nethttp.Verdict) {
	if !f.Keeps() {
		return
	}
	if k, ok := f.Get(c, verdictName).(*kept); ok {
		*k = kept{v, true}
	}
}

// Verdict returns the last verdict that was kept, or false.
func (f *Framework[C]) Verdict(c C) (nethttp.Verdict, bool) {
	if k, ok := f.Get(c, verdictName).(*kept); ok {
		return k.verdict, k.given
	}
	return nethttp.Verdict{}, false
}
