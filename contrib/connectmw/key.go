package connectmw

import (
	"github.com/headgate/headgate/contrib/rpc"
	"github.com/headgate/headgate/keyfuncs"
)

// Peer returns a key that is the address which a call comes from: see [keyfuncs.RemoteAddr].
func Peer() keyfuncs.Func { return keyfuncs.RemoteAddr() }

// BehindProxies returns a key that is the client's address, as n trusted proxies in a row name it: see
// [keyfuncs.BehindProxies]. It needs [Requests].
func BehindProxies(n int) (keyfuncs.Func, error) { return keyfuncs.BehindProxies(n) }

// Metadata returns a key that is the first value of a field of the call's header. See
// [keyfuncs.Header]. Clients choose it, unless something before the guard has checked it.
func Metadata(name string) keyfuncs.Func { return keyfuncs.Header(name) }

// Method returns a key that is the procedure, such as "/package.Service/Method".
func Method() keyfuncs.Func { return rpc.Procedure }

// TLSSubject returns a key that is the subject of the client's certificate (RFC 4514), if the server
// has verified that. A call without one is [keyfuncs.ErrAbsent]. It needs [Requests].
func TLSSubject() keyfuncs.Func { return rpc.TLSSubject }

// All returns a key of several, all of which a call must have: see [keyfuncs.All].
func All(keys ...keyfuncs.Func) keyfuncs.Func { return keyfuncs.All(keys...) }

// First returns the first key that a call has: see [keyfuncs.First].
func First(keys ...keyfuncs.Func) keyfuncs.Func { return keyfuncs.First(keys...) }
