package step_test

import (
	"testing"

	"github.com/headgate/headgate/internal/old/core/step"
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

// The twin of a sliding window replies with the record that it found, and what was charged, or
// counted as refused, is added here.
func TestReadTwinOfSlidingWindow(t *testing.T) {
	m := step.Numbers{Algorithm: step.SlidingWindow, Limit: 10, Period: 3000, Resolution: 3, CountDenied: true}
	p := newKey(t, m).step
	for _, found := range [][]int64{nil, {noon, 1, 2, 3, 0}, {noon - 2000, 1, 2, 3, 4}, {noon - 9000, 1, 2, 3, 4}} {
		reply := step.AppendWord(step.AppendWord(step.AppendWord(nil, 1234567), m.Period), m.Resolution)
		for _, word := range found {
			reply = step.AppendWord(reply, word)
		}
		if found == nil { // no record
			reply = make([]byte, step.ReplyBytes(p, true))
		}
		for _, n := range []int64{0, 2} {
			charged, refused := make([]int64, p.Words()), make([]int64, p.Words())
			copy(charged, found)
			copy(refused, found)
			if n > 0 {
				charged, refused = p.Charge(charged, noon, n), p.Refuse(refused, noon, n)
			}
			got, err := step.ReadTwin(p, string(reply), noon, 0, n, 0)
			if want := p.Read(charged, noon, 0); err != nil || got != want {
				t.Errorf("%v, %d charged: %+v, %v, want %+v", found, n, got, err, want)
			}
			got, err = step.ReadTwin(p, string(reply), noon, 5, 0, n)
			if want := p.Read(refused, noon, 5); err != nil || got != want {
				t.Errorf("%v, %d refused: %+v, %v, want %+v", found, n, got, err, want)
			}
		}
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
		n = max(min(n, k.step.Max()), 0)
		r, err := step.ReadTwin(k.step, string(reply), noon, n, n, 0)
		if err != nil && r != (step.Reading{}) {
			t.Errorf("%+v and %v", r, err)
		}
	})
}
