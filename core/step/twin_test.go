package step_test

import (
	"testing"

	"github.com/headgate/headgate/core/step"
)

// TestWords: a word is 7 bytes, big endian, and holds all that a state may.
func TestWords(t *testing.T) {
	var all []byte
	words := []int64{0, 1, 255, 256, 1 << 32, noon, step.MaxInt}
	for _, w := range words {
		all = step.AppendWord(all, w)
	}
	if len(all) != step.WordBytes*len(words) {
		t.Fatalf("%d bytes for %d words", len(all), len(words))
	}
	for i, want := range words {
		if got := step.Word(string(all[i*step.WordBytes:])); got != want {
			t.Errorf("word %d is %d, want %d", i, got, want)
		}
	}
	if string(step.AppendWord(nil, 0x01020304050607)) != "\x01\x02\x03\x04\x05\x06\x07" {
		t.Error("words are not big endian")
	}
}

// FuzzReadTwin: what another program left under a key is an error, or is read as
// some state, and nothing worse.
func FuzzReadTwin(f *testing.F) {
	for i, m := range subjects {
		var state []byte
		for w := range int64(8) {
			state = step.AppendWord(state, w*m.Period)
		}
		f.Add(uint8(i), []byte{}, int64(1))
		f.Add(uint8(i), state, int64(3))
		f.Add(uint8(i), state[:step.WordBytes+3], int64(3))
	}
	f.Fuzz(func(t *testing.T, i uint8, reply []byte, n int64) {
		k := newKey(t, subjects[int(i)%len(subjects)])
		r, err := step.ReadTwin(k.step, string(reply), noon, max(n, 0))
		if err != nil && r != (step.Reading{}) {
			t.Errorf("%+v and %v", r, err)
		}
	})
}
