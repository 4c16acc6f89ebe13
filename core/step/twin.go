package step

import (
	"embed"
	"fmt"
	"slices"
)

//go:embed *.lua
var twins embed.FS

// Twin returns the source of the algorithm's Lua twin. What it builds on, and what
// it must define, is written at the head of package redisstore's script.
func (a Algorithm) Twin() string {
	file := map[Algorithm]string{
		TokenBucket:   "tokenbucket.lua",
		FixedWindow:   "fixedwindow.lua",
		SlidingWindow: "slidingwindow.lua",
		SlidingLog:    "slidinglog.lua",
		MinInterval:   "mininterval.lua",
	}
	source, err := twins.ReadFile(file[a])
	if err != nil {
		return "" // an algorithm without state
	}
	return string(source)
}

// ReadTwin is Read of a state as a twin returned it: in words of [WordBytes], the
// numbers under which it was kept first.
func ReadTwin(p Step, reply []byte, now, n int64) (Reading, error) {
	var room [16]int64
	words := room[:0]
	if len(reply)%WordBytes != 0 {
		return Reading{}, fmt.Errorf("headgate: a state of %d bytes", len(reply))
	}
	for ; len(reply) > 0; reply = reply[WordBytes:] {
		words = append(words, Word(reply))
	}
	if l, ok := p.(*slidingLog); ok {
		if len(words) != 4 {
			return Reading{}, fmt.Errorf("headgate: a log's view of %d words", len(words))
		}
		return l.reading(now, n, words[0], words[1], words[2], words[3]), nil
	}
	if len(words) == 0 {
		return p.Read(nil, now, n), nil
	}
	m := p.Numbers()
	from := m
	var header int
	switch m.Algorithm {
	case TokenBucket:
		header = 3
		if len(words) > header {
			from.Limit, from.Period, from.Burst = words[0], words[1], words[2]
		}
	case FixedWindow:
		header, from.Period = 1, words[0]
	case MinInterval:
		header, from.Period = 1, words[0]
	case SlidingWindow:
		header = 2
		if len(words) > header {
			from.Period, from.Resolution = words[0], words[1]
		}
	}
	old := p
	var err error
	if from != m {
		old, err = New(from)
	}
	if err != nil || len(words) != header+old.Words() {
		return Reading{}, fmt.Errorf("headgate: a state of %d words", len(words))
	}
	state := words[header:]
	if b, ok := old.(*tokenBucket); ok && state[1] >= b.n {
		return Reading{}, fmt.Errorf("headgate: a fraction of %d/%d", state[1], b.n)
	}
	if from != m {
		state, _ = p.Adopt(slices.Clone(state), now, from)
	}
	return p.Read(state, now, n), nil
}

// WordBytes is the length of a stored integer, big endian: 2^53-1 takes 7 bytes.
const WordBytes = 7

// Word returns the integer that b begins with.
func Word(b []byte) int64 {
	_ = b[6]
	return int64(b[0])<<48 | int64(b[1])<<40 | int64(b[2])<<32 | int64(b[3])<<24 |
		int64(b[4])<<16 | int64(b[5])<<8 | int64(b[6])
}

// AppendWord appends x, which is from 0 to [MaxInt].
func AppendWord(b []byte, x int64) []byte {
	return append(b, byte(x>>48), byte(x>>40), byte(x>>32), byte(x>>24), byte(x>>16), byte(x>>8), byte(x))
}
