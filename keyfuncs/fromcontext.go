package keyfuncs

import (
	"context"
	"net/http"
	"strconv"
)

// ContextFunc charges what get finds in the request's context: for values behind a
// function, such as the subject of a token that was verified.
//
//	keyfuncs.ContextFunc(func(ctx context.Context) (string, bool) {
//		claims, ok := auth.ClaimsFrom(ctx)
//		return claims.Subject, ok
//	})
//
// The middleware that verifies the token and puts it there must run first. Charge what
// it has verified: a claim of a token whose signature nobody checked is what the client
// wrote. If several issuers are trusted, a subject is unique only with its issuer:
// return both, or combine them with [All].
//
// A value that get does not find, or finds empty, is [ErrAbsent]. The key is the value
// as it is; if it is a secret, see [Hashed]. get must be safe for concurrent use.
// ContextFunc panics if it is nil.
func ContextFunc(get func(context.Context) (string, bool)) Func {
	if get == nil {
		panic("headgate: keyfuncs: ContextFunc: the function is nil")
	}
	errAbsent := absent("value from the context")
	return func(r *http.Request) (string, error) {
		value, ok := get(r.Context())
		if !ok || value == "" {
			return "", errAbsent
		}
		return value, nil
	}
}

// PathValue charges the part of the path that matched a wildcard of [http.ServeMux], as
// the tenant in "/tenants/{tenant}/items", for use within [All].
//
// Beware: the value is what the client wrote. It says which resource is used and not who
// uses it; a client that may ask for any has a new limit for each.
//
// The mux sets the value when it has chosen the handler. A middleware around the whole
// mux runs before that, and PathValue is [ErrAbsent] there: wrap the handlers that are
// registered in the mux instead. It is ErrAbsent too if the pattern has no such wildcard,
// or it matched nothing. A value of more than 4 KiB is [ErrMalformed].
//
// PathValue panics if name is empty.
func PathValue(name string) Func {
	if name == "" {
		panic("headgate: keyfuncs: PathValue: the name is empty")
	}
	var (
		thing      = "path value " + strconv.Quote(name)
		errAbsent  = absent(thing)
		errTooLong = malformed(thing, "longer than 4 KiB")
	)
	return func(r *http.Request) (string, error) {
		value := r.PathValue(name)
		if value == "" {
			return "", errAbsent
		}
		if len(value) > maxValue {
			return "", errTooLong
		}
		return value, nil
	}
}
