package yamltree_test

import (
	"testing"

	"github.com/headgate/headgate/internal/yamltree"
)

func TestDecode(t *testing.T) {
	type inner struct {
		Name  string
		Units uint32
		Is    bool
		More  []yamltree.At[inner]
		Texts yamltree.Texts
	}
	const text = `name: [a]
units: -1
is: 1
more:
- {name: 7, is: yes, units: secret, other: secret}
- a
- {more: [{name: {}, name: b}], texts: [[c]]}
texts: {}
`
	r := &yamltree.Reader{Unended: true}
	var v inner
	r.Decode(r.Load([]byte(text)), &v)
	const want = `line 1, column 7: this is a list, not a string
line 2, column 8: this is not a whole number of that size
line 3, column 5: this is a number, not true or false
line 5, column 29: this is a string, not a whole number of that size
line 5, column 37: there is no such field here
line 6, column 3: this is a string, not a map
line 7, column 22: this is there twice
line 7, column 41: this is a list, not a string
line 8, column 8: this is a map, not a string`
	if err := r.Err(); err == nil || err.Error() != want {
		t.Errorf("%v", err)
	}
	r, v = new(yamltree.Reader), inner{}
	r.Decode(r.Load([]byte("more:\n- {name: 7, is: yes}\n...")), &v)
	if r.Err() != nil || v.More[0].Value.Name != "7" || !v.More[0].Value.Is || v.More[0].Line != 2 || v.More[0].Column != 3 {
		t.Errorf("%+v", v)
	}
}
