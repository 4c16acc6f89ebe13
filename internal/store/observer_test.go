package store_test

import (
	"reflect"
	"slices"
	"testing"

	"github.com/headgate/headgate/internal/store"
)

// observer returns an observer whose functions append a name to what was called.
func observer(name string, called *[]string) *store.Observer {
	o := &store.Observer{Timed: true}
	for v, i := reflect.ValueOf(o).Elem(), 0; i < v.NumField(); i++ {
		if f := v.Field(i); f.Kind() == reflect.Func {
			f.Set(reflect.MakeFunc(f.Type(), func([]reflect.Value) []reflect.Value {
				*called = append(*called, name)
				return nil
			}))
		}
	}
	return o
}

// And tells both, the first one first, by each function that any of them has.
func TestAnd(t *testing.T) {
	var called []string
	a, b, none := observer("a", &called), observer("b", &called), new(store.Observer)
	for _, test := range []struct {
		is   *store.Observer
		want []string
	}{
		{a.And(b), []string{"a", "b"}}, {none.And(a), []string{"a"}}, {a.And(none), []string{"a"}},
		{(*store.Observer)(nil).And(a).And(nil), []string{"a"}}, {a.And(b).And(a), []string{"a", "b", "a"}},
	} {
		v := reflect.ValueOf(test.is).Elem()
		for i := range v.NumField() {
			f := v.Field(i)
			if f.Kind() == reflect.Bool {
				if !f.Bool() {
					t.Errorf("%s is not set", v.Type().Field(i).Name)
				}
				continue
			}
			called = nil
			var args []reflect.Value
			for j := range f.Type().NumIn() {
				args = append(args, reflect.Zero(f.Type().In(j)))
			}
			if f.Call(args); !slices.Equal(called, test.want) {
				t.Errorf("%s called %v, not %v", v.Type().Field(i).Name, called, test.want)
			}
		}
	}
	if nobody := (*store.Observer)(nil).And(nil); nobody != nil || none.And(none).Decided != nil {
		t.Error("nobody is somebody")
	}
}
