package carried_test

import (
	"testing"

	"github.com/headgate/headgate/internal/carried"
)

type key func() string

func unused(text string) key   { return carried.Unused(key(func() string { return text })) }
func required(text string) key { return carried.Required(key(func() string { return text })) }
func plain(text string) key    { return func() string { return text } }

func TestMarks(t *testing.T) {
	for _, test := range []struct {
		name             string
		key              key
		unused, required bool
	}{
		{"unused", unused("a"), true, false},
		{"another of that line", unused("b"), true, false},
		{"required", required("a"), false, true},
		{"another of that line", required("b"), false, true},
		{"not marked", plain("a"), false, false},
		{"around one that is not used", plain(unused("a")()), false, false},
		{"around one that is required", plain(required("a")()), false, false},
		{"nil", nil, true, false},
	} {
		if u, r := carried.IsUnused(test.key), carried.IsRequired(test.key); u != test.unused || r != test.required {
			t.Errorf("%s: unused %v, required %v", test.name, u, r)
		}
	}
	if a, b := unused("a"), required("b"); a() != "a" || b() != "b" {
		t.Error("a mark changes the function")
	}
}
