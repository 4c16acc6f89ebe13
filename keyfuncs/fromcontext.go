package keyfuncs

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"strconv"
)

// Context charges the value that the request's context has for key, such as the
// user that an authentication middleware put there. That middleware must run first.
//
// The value may be of a string or integer type, whose text is charged, or a
// [fmt.Stringer]. A value that is missing, nil or empty text is [ErrAbsent]; zero is
// a number like others. A value of another type is an error of the program, neither
// ErrAbsent nor [ErrMalformed].
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
			return "", fmt.Errorf("headgate: keyfuncs: %s: no text in a %T", thing, value)
		}
		if text == "" {
			return "", errAbsent
		}
		return text, nil
	}
}

// textOf returns the text of a value that Context can charge; nil has none.
//
// A string type is taken as it is even if it has a String method, because such a
// method is often there to hide a secret, and would give all secrets one key.
func textOf(value any) (text string, ok bool) {
	v := reflect.ValueOf(value)
	switch v.Kind() {
	case reflect.Invalid:
		return "", true
	case reflect.String:
		return v.String(), true
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return strconv.FormatInt(v.Int(), 10), true
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		return strconv.FormatUint(v.Uint(), 10), true
	case reflect.Pointer, reflect.Map, reflect.Slice, reflect.Func, reflect.Chan:
		if v.IsNil() {
			return "", true // do not call String on it
		}
	}
	if s, ok := value.(fmt.Stringer); ok {
		return s.String(), true
	}
	return "", false
}

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
