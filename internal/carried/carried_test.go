package carried_test

import (
	"testing"

	"github.com/headgate/headgate/internal/carried"
)

type key func() string

func marked(text string) key { return carried.Mark(key(func() string { return text })) }
func plain(text string) key  { return func() string { return text } }

func TestIs(t *testing.T) {
	if a, b := marked("a"), marked("b"); !carried.Is(a) || !carried.Is(b) || a() != "a" || b() != "b" {
		t.Error("what is marked is not, or is another")
	}
	if carried.Is(plain("a")) || carried.Is(plain(marked("b")())) {
		t.Error("what is not marked is")
	}
}
