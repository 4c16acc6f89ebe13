package keyfuncs

import (
	"fmt"
	"net/http"
	"reflect"
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
	return func(r *http.Request) (string, error) {
		value := r.Context().Value(key)
		text, ok := textOf(value)
		if !ok {
			return "", ofKind(ErrProgram, fmt.Sprintf("%s: no text in a %T", thing, value))
		}
		if text == "" {
			return "", errAbsent
		}
		return text, nil
	}
}

// From charges the text that get returns for a request: of a session, of a verified token, or of anything
// else that has an accessor function.
//
//	keyfuncs.From(func(r *http.Request) (string, bool) {
//		claims, ok := auth.ClaimsFrom(r.Context())
//		return claims.Subject, ok
//	})
//
// The middleware that verifies the token must run first. Charge only verified claims: the client chooses
// the claims of a token whose signature is not checked. If several issuers are trusted, a subject is
// unique only together with its issuer. Return both, or combine them with [All].
//
// The identifier of a session is a secret, so charge its hash. With github.com/alexedwards/scs/v2, whose
// LoadAndSave must run first:
//
//	keyfuncs.Hashed(keyfuncs.From(func(r *http.Request) (string, bool) {
//		token := sessions.Token(r.Context())
//		return token, token != "" // "": unknown, or made by this request
//	}))
//
// With github.com/gorilla/sessions and a store that keeps sessions on the server:
//
//	keyfuncs.Hashed(keyfuncs.From(func(r *http.Request) (string, bool) {
//		s, err := store.Get(r, "session")
//		return s.ID, err == nil && !s.IsNew
//	}))
//
// Its CookieStore leaves the ID empty: store a random one among the session's values, and return
// that. The client must not be able to choose it, and it must not change with each response. Nor
// may the client choose its spelling. Some databases find a session by letters of either case, as
// MySQL does by default. Then charge a value that is stored in the session.
//
// A hostile client can omit its session, and start as many as the service allows: limit
// those too, as the package documentation shows.
//
// If get returns false or an empty text, the error is [ErrAbsent]. get must be safe for concurrent use.
// From panics if get is nil.
func From(get func(*http.Request) (string, bool)) Func {
	if get == nil {
		panic("headgate: keyfuncs: From: the function is nil")
	}
	errAbsent := absent("value from a function of the program")
	return func(r *http.Request) (string, error) {
		text, ok := get(r)
		if !ok || text == "" {
			return "", errAbsent
		}
		return text, nil
	}
}
