package keyfuncs

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"strconv"
)

// Context charges the value of key in the request's context, such as the user that an
// authentication middleware stored there. That middleware must run first.
//
// The value must be of a string or integer type, whose text is the key, or a
// [fmt.Stringer]. A value that is missing, nil or an empty text is [ErrAbsent]; the
// number 0 is a key like others. A value of another type is [ErrProgram].
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
			return "", fmt.Errorf("%w: %s: no text in a %T", ErrProgram, thing, value)
		}
		if text == "" {
			return "", errAbsent
		}
		return text, nil
	}
}

// textOf returns the text of a value that Context can charge, which is empty for nil.
//
// The String method of a string type is not called, because such methods often hide
// secrets, and all secrets would have the same key.
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

// ContextFunc charges the value that get returns for the request's context. It is for
// values with an accessor function, such as the subject of a verified token.
//
//	keyfuncs.ContextFunc(func(ctx context.Context) (string, bool) {
//		claims, ok := auth.ClaimsFrom(ctx)
//		return claims.Subject, ok
//	})
//
// The middleware that verifies the token and stores it must run first. Charge only
// verified claims: the client chooses those of a token whose signature is not checked. If
// several issuers are trusted, a subject is unique only together with its issuer: return
// both, or combine them with [All].
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
