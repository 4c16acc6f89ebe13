package keyfuncs

import (
	"fmt"
	"reflect"
	"strconv"
)

// textOf returns the text of a value, which is empty for nil, and whether its type has one: strings,
// integers, and [fmt.Stringer].
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
