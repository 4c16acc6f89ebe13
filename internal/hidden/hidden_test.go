package hidden_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/headgate/headgate/internal/hidden"
)

func TestTextIsNotPrinted(t *testing.T) {
	type inner struct{ text hidden.Text }
	type outer struct {
		Exported hidden.Text
		inner    inner
		any      any
		list     []hidden.Text
		byName   map[string]hidden.Text
	}
	x := hidden.Of("canary")
	v := outer{x, inner{x}, x, []hidden.Text{x}, map[string]hidden.Text{"": x}}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		for _, v := range []any{x, &x, v, &v} {
			if text := fmt.Sprintf(verb, v); strings.Contains(text, "canary") || strings.Contains(text, "63616e617279") {
				t.Errorf("%s of %T: %s", verb, v, text)
			}
		}
	}
	if got := v.inner.text.Reveal(); got != "canary" {
		t.Errorf("revealed %q", got)
	}
	if got := (hidden.Text{}).Reveal(); got != "" {
		t.Errorf("the zero Text has %q", got)
	}
}

type secretive struct{ Name, Key string }

func (s secretive) Format(state fmt.State, verb rune) {
	type plain secretive
	s.Key = hidden.Mark
	hidden.Print(state, verb, plain(s))
}

func TestPrintKeepsVerbAndFlags(t *testing.T) {
	for verb, want := range map[string]string{"%v": "{a (hidden)}", "%+v": "{Name:a Key:(hidden)}", "%q": `{"a" "(hidden)"}`} {
		if got := fmt.Sprintf(verb, secretive{"a", "canary"}); got != want {
			t.Errorf("%s: %s, want %s", verb, got, want)
		}
	}
}
