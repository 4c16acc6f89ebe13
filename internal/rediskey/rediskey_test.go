package rediskey

import (
	"fmt"
	"strings"
	"testing"

	"github.com/headgate/headgate/internal/redistest"
)

// hostile are keys that a careless name would confuse, cut, or send to other hash slots.
func hostile() []string {
	long := strings.Repeat("k", 10<<10)
	return []string{
		"", " ", "a", "A", "a ", " a", "a:b", "a/b", "a:", ":b", "{", "}", "{}", "}{", "{a}", "{a", "a}", "{}a", "{{a}}", "a{b}c",
		"=", "=a", "#", "*", "~", "~7b", "~7d", "~~", "~7e", "~7b7d", "{~7d", "\x00", "a\x00", "\x00a", "a\x00b", "\n", "\r\n", "\xff", "\xff\xfe",
		"\xc3\x28", "é", "e\u0301", "💧", "*3\r\n", "$-1\r\n", "a]b", "[ab]", "a*", "?", "key:b", "slots", "}:api", "a}:api/a",
		strings.Repeat("x", MaxPlain), strings.Repeat("x", MaxPlain+1), strings.Repeat("x", MaxPlain+2),
		strings.Repeat("{", MaxPlain), strings.Repeat("{", MaxPlain+1), strings.Repeat("\xff", 300),
		long, long + "}", long[1:] + "l",
	}
}

var secret = []byte("a secret of thirty-two bytes or more")

// Whatever the bytes, different keys have different tags, and the server agrees about their hash slots.
func TestTagsAreDistinct(t *testing.T) {
	server := redistest.Start(t, "cluster-enabled yes")
	for _, names := range []*Names{New("headgate", nil), New("", nil), New("a:b", secret)} {
		seen := map[string]string{names.Common("slots", "servers"): "Common"}
		for _, key := range hostile() {
			tag := string(names.AppendTag(nil, key))
			if other, ok := seen[tag]; ok {
				t.Errorf("%.50q and %.50q have the tag %q", key, other, tag)
			}
			seen[tag] = key
			for _, name := range []string{tag + ":api", names.Common("slots", "servers")} {
				slot, err := server.Do("CLUSTER", "KEYSLOT", name)
				if err != nil || slot != int64(HashSlot([]byte(name))) {
					t.Errorf("%q is in hash slot %v, not %d (%v)", name, slot, HashSlot([]byte(name)), err)
				}
			}
		}
	}
}

func FuzzTagsAreDistinct(f *testing.F) {
	for _, key := range hostile() {
		f.Add(key, key+"}")
	}
	names := New("headgate", nil)
	f.Fuzz(func(t *testing.T, a, b string) {
		x, y := string(names.AppendTag(nil, a)), string(names.AppendTag(nil, b))
		if (x == y) != (a == b) {
			t.Errorf("%q and %q", x, y)
		}
		if tag := x[len("headgate:{") : len(x)-1]; tag == "" || strings.ContainsAny(tag, "{}") {
			t.Errorf("%q has the hash tag %q", x, tag)
		}
	})
}

func TestEscapedNamesAreDistinct(t *testing.T) {
	names := []string{"a", "b", "a/b", "a:b", "a/", "/a", "a:", ":a", "~", "~2f", "a~", "{a}", "{", "}", " ", "a/a:b"}
	seen := make(map[string]string)
	for _, a := range names {
		for _, b := range names {
			name := string(AppendEscaped(append(AppendEscaped(nil, a, ":/"), '/'), b, ":/"))
			if other, ok := seen[name]; ok {
				t.Errorf("%q with %q, and %s: %q", a, b, other, name)
			}
			seen[name] = fmt.Sprintf("%q with %q", a, b)
		}
	}
}

// With a secret, nothing of a key can be read in a name, nor of the secret in what is printed. All servers with the
// secret have the same names.
func TestSecretHidesKeys(t *testing.T) {
	own := []byte(string(secret))
	names := New("headgate", own)
	clear(own) // a slice may be reused by its owner
	for _, key := range []string{"203.0.113.77", strings.Repeat("203.0.113.77", 20)} {
		tag := string(names.AppendTag(nil, key))
		if strings.Contains(tag, "203.0.113") || tag == string(New("headgate", nil).AppendTag(nil, key)) {
			t.Errorf("the tag is %q", tag)
		}
		if again := string(New("headgate", secret).AppendTag(nil, key)); again != tag {
			t.Errorf("%q and %q", tag, again)
		}
		if other := string(New("headgate", append(secret, 'x')).AppendTag(nil, key)); other == tag {
			t.Error("another secret gives the same tag")
		}
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x"} {
		if all := fmt.Sprintf(verb, names); strings.Contains(all, "thirty-two") || strings.Contains(all, fmt.Sprintf("%x", secret[:8])) {
			t.Errorf("%s shows the secret", verb)
		}
	}
}
