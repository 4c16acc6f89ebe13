package keyfuncs

import (
	"context"
	"fmt"
	"net/http"
	"reflect"

	"github.com/headgate/headgate/internal/carried"
	"github.com/headgate/headgate/internal/keytext"
)

// Context charges the value of key in the request's context, such as the user that an
// authentication middleware stored there. That middleware must run first.
//
// The value must be of a string or integer type, or a [fmt.Stringer]. Its text is the key. A value
// that is missing, nil or an empty text is [ErrAbsent]. The number 0 is a key like others. A value
// of another type is [ErrProgram].
//
// Context panics if key is nil or not comparable, as [context.WithValue] does.
func Context(key any) Func {
	if key == nil || !reflect.TypeOf(key).Comparable() {
		panic("headgate: keyfuncs: Context: the key is nil or not comparable")
	}
	thing := fmt.Sprintf("context value of %T", key)
	errAbsent := absent(thing)
	return carried.Unused(Func(func(r *http.Request) (string, error) {
		value := r.Context().Value(key)
		text, ok := keytext.Of(value)
		if !ok {
			return "", fmt.Errorf("%w: %s: no text in a %T", ErrProgram, thing, value)
		}
		if text == "" {
			return "", errAbsent
		}
		return text, nil
	}))
}

// ContextFunc charges the value that get returns for the request's context. It is for
// values with an accessor function, such as the subject of a verified token.
//
//	keyfuncs.ContextFunc(func(ctx context.Context) (string, bool) {
//		claims, ok := auth.ClaimsFrom(ctx)
//		return claims.Subject, ok
//	})
//
// The middleware that verifies the token and stores it must run first. Charge only verified claims:
// the client chooses the claims of a token whose signature is not checked. If several issuers are
// trusted, a subject is unique only together with its issuer. Return both, or combine them with
// [All].
//
// If get returns false or an empty value, the error is [ErrAbsent]. The key is the value
// unchanged; for secrets, see [Hashed]. get must be safe for concurrent use. ContextFunc
// panics if get is nil.
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
