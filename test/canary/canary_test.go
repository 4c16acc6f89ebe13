package canary

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"reflect"
	"sync"
	"testing"
)

// What must be in no output.
const (
	canary   = Canary
	key      = canary + "-key-of-anna"
	secret   = canary + "-secret-of-32-bytes-or-more"
	password = canary + "-password"
)

// A spill collects what is printed.
type spill struct {
	found func(what, where string)
	mu    sync.Mutex // answers and events come from many goroutines
}

func newSpill(t *testing.T) *spill {
	return &spill{found: func(what, where string) { t.Errorf("%s has the canary: ...%s", what, where) }}
}

// text looks for the canary in an output.
func (s *spill) text(what, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if around, found := In(text); found {
		s.found(what, around)
	}
}

// value prints a value in every way, also in an exported field and in a list.
func (s *spill) value(what string, v any) {
	see(reflect.TypeOf(v))
	s.print(what, v)
	s.print(what+" in a field", struct{ X any }{v})
	s.print(what+" in a pointer", &struct{ X any }{v})
	s.print(what+" in a list", []any{v})
	s.print(what+" in a map", map[string]any{"x": v})
	list := reflect.MakeSlice(reflect.SliceOf(reflect.TypeOf(v)), 1, 1)
	list.Index(0).Set(reflect.ValueOf(v))
	s.print(what+" in a list of its type", list.Interface())
	if reflect.TypeOf(v).Kind() != reflect.Pointer {
		pointer := reflect.New(reflect.TypeOf(v))
		pointer.Elem().Set(reflect.ValueOf(v))
		s.print("a pointer to "+what, pointer.Interface())
	}
	var err error
	if e, ok := v.(error); ok {
		err = e
	}
	for ; err != nil; err = errors.Unwrap(err) {
		s.print(what+", unwrapped", err)
	}
}

// deep prints a value in every way, also in fields where package fmt calls no methods: all that
// the packages return.
func (s *spill) deep(what string, v any) {
	s.value(what, v)
	s.text(what+", %p", fmt.Sprintf("%p", v))
	s.print(what+" in an unexported field", struct{ x any }{v})
	s.print(what+" deep in unexported fields", struct{ x []struct{ y any } }{[]struct{ y any }{{v}}})
	if p := reflect.ValueOf(v); p.Kind() == reflect.Pointer && !p.IsNil() {
		s.print("what is at "+what, struct{ x any }{p.Elem().Interface()})
	}
}

func (s *spill) print(what string, v any) {
	for _, verb := range Verbs {
		s.text(what+", "+verb, fmt.Sprintf(verb, v))
	}
	var b bytes.Buffer
	for name, handler := range map[string]slog.Handler{"text": slog.NewTextHandler(&b, nil), "JSON": slog.NewJSONHandler(&b, nil)} {
		b.Reset()
		slog.New(handler).Info("x", "v", v, slog.Group("g", "v", v))
		s.text(what+", slog's "+name, b.String())
	}
	if text, err := json.Marshal(v); err == nil {
		s.text(what+", JSON", string(text))
	} else {
		s.text(what+", JSON's error", err.Error())
	}
}

// answer looks at a response.
func (s *spill) answer(what string, r *http.Response) {
	dump, err := httputil.DumpResponse(r, true)
	s.text(what, fmt.Sprintf("%s %v", dump, err))
	_ = r.Body.Close()
}

// The test is worth nothing if it does not see what is there.
func TestTheCanaryIsFound(t *testing.T) {
	for name, v := range map[string]any{
		"a string": key, "bytes": []byte(key), "bytes in a struct": struct{ x []byte }{[]byte("." + key)}, "base64": struct{ X []byte }{[]byte(".." + key)},
		"an error": errors.New(key), "a wrapped error": fmt.Errorf("x: %w", errors.New(key)), "deep": struct{ x any }{struct{ y any }{key}},
		"a key": struct{ x map[string]int }{map[string]int{key: 1}}, "a pointer": &struct{ x string }{key},
	} {
		found := 0
		(&spill{found: func(string, string) { found++ }}).deep(name, v)
		if found == 0 {
			t.Errorf("%s: it is not found", name)
		}
	}
}
