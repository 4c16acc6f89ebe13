package store_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/headgate/headgate/internal/old/core/store"
)

// told returns an observer that writes its name and what it is told of.
func told(log *[]string, name string) *store.Observer {
	o := new(store.Observer)
	v := reflect.ValueOf(o).Elem()
	for i := range v.NumField() {
		if f := v.Field(i); f.Kind() == reflect.Func {
			f.Set(reflect.MakeFunc(f.Type(), func(args []reflect.Value) []reflect.Value {
				line := name + " " + v.Type().Field(i).Name
				for _, a := range args {
					line += fmt.Sprintf(" %+v", a)
				}
				*log = append(*log, line)
				return nil
			}))
		}
	}
	return o
}

// tell calls every function that the observer has, with arguments that are not zero.
func tell(o *store.Observer) {
	v := reflect.ValueOf(o).Elem()
	for i := range v.NumField() {
		f := v.Field(i)
		if f.Kind() != reflect.Func || f.IsNil() {
			continue
		}
		var args []reflect.Value
		for i := range f.Type().NumIn() {
			args = append(args, argument(f.Type().In(i)))
		}
		f.Call(args)
	}
}

func argument(t reflect.Type) reflect.Value {
	switch {
	case t == reflect.TypeFor[context.Context]():
		return reflect.ValueOf(context.Background())
	case t == reflect.TypeFor[error]():
		return reflect.ValueOf(errors.New("a reason"))
	}
	x := reflect.New(t).Elem()
	switch t.Kind() {
	case reflect.String:
		x.SetString("text")
	case reflect.Int, reflect.Int64:
		x.SetInt(7)
	case reflect.Struct:
		x.Field(0).Set(argument(t.Field(0).Type))
	default:
		panic(t)
	}
	return x
}

// TestObserversTellsEach of everything that an Observer can be told.
func TestObserversTellsEach(t *testing.T) {
	var a, both []string
	tell(told(&a, "x"))
	if n := reflect.TypeFor[store.Observer]().NumField() - 2; len(a) != n { // without Timed and Shares
		t.Fatalf("an observer was told %d things of %d", len(a), n)
	}
	tell(store.Observers(told(&both, "x"), nil, told(&both, "y")))
	var want []string
	for _, line := range a {
		want = append(want, line, "y"+line[1:])
	}
	if !slices.Equal(both, want) {
		t.Errorf("told %q\nwant %q", both, want)
	}
}

// TestObserversAskForNoMore than those that they consist of.
func TestObserversAskForNoMore(t *testing.T) {
	if o := store.Observers(nil, nil); o != nil {
		t.Errorf("%+v of none", o)
	}
	one := &store.Observer{Timed: true}
	if o := store.Observers(nil, one); o != one {
		t.Errorf("%+v of one", o)
	}
	calls := 0
	o := store.Observers(new(store.Observer), &store.Observer{SlotReleased: func(string) { calls++ }})
	v := reflect.ValueOf(o).Elem()
	for i := range v.NumField() {
		if name := v.Type().Field(i).Name; !v.Field(i).IsZero() && name != "SlotReleased" {
			t.Errorf("asks for %s", name)
		}
	}
	o.SlotReleased("ws")
	if calls != 1 {
		t.Errorf("%d calls", calls)
	}
	if !store.Observers(new(store.Observer), one).Timed || !store.Observers(new(store.Observer), &store.Observer{Shares: true}).Shares {
		t.Error("not Timed, or not Shares")
	}
}
