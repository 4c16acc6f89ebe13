package fault

import (
	"errors"
	"testing"
)

func TestText(t *testing.T) {
	for text, want := range map[string]string{
		"broken":                          "headgate: limits: broken",
		"headgate: limits: broken":        "headgate: limits: broken",
		"headgate: redisdoc: broken":      "headgate: limits: redisdoc: broken",
		"headgate":                        "headgate: limits: headgate",
		"line 4: a: headgate: keeps text": "headgate: limits: line 4: a: headgate: keeps text",
	} {
		if got := Text("limits", errors.New(text)); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
