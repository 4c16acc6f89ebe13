package main

import (
	"bytes"
	"strings"
	"testing"
)

// The impatient client is refused, the patient one is admitted three times.
func TestRun(t *testing.T) {
	var out bytes.Buffer
	if err := run(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	if text := out.String(); strings.Count(text, "impatient: \n") != 2 || strings.Count(text, `impatient: quota exceeded: "calls"`) != 1 ||
		strings.Count(text, "patient: admitted after") != 3 {
		t.Error(text)
	}
}
