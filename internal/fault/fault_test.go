package fault

import (
	"errors"
	"fmt"
	"testing"
)

func TestWrap(t *testing.T) {
	for text, want := range map[string]string{
		"broken":                          "headgate: limits: broken",
		"headgate: limits: broken":        "headgate: limits: broken",
		"headgate: redisdoc: broken":      "headgate: limits: redisdoc: broken",
		"headgate":                        "headgate: limits: headgate",
		"line 4: a: headgate: keeps text": "headgate: limits: line 4: a: headgate: keeps text",
	} {
		err := errors.New(text)
		got := Wrap("limits", err)
		if got.Error() != want || !errors.Is(got, err) {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
		if again := Wrap("limits", got); again.Error() != want {
			t.Errorf("%q twice: %q", text, again)
		}
	}
	if got := fmt.Sprint(Wrap("guard: Rules[0]", errors.New("headgate: keyfuncs: absent"))); got != "headgate: guard: Rules[0]: keyfuncs: absent" {
		t.Error(got)
	}
}
