package main

import (
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/redistest"
)

const example = "testdata/trace.csv" // made up

func read(t *testing.T) []request {
	t.Helper()
	f, err := os.Open(example)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	trace, err := parse(example, f)
	if err != nil {
		t.Fatal(err)
	}
	return trace
}

func TestParse(t *testing.T) {
	const head = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
	const first = "2023-11-16 18:15:46.6805900,374,44\n"
	got, err := parse("f", strings.NewReader(strings.ReplaceAll(head+first+"2023-11-16 18:15:50,0,1000000000", "\n", "\r\n")))
	if err != nil || len(got) != 2 || got[0] != (request{0, 374, 44}) || got[1] != (request{3_319_410 * time.Microsecond, 0, 1_000_000_000}) {
		t.Errorf("%v, %v", got, err)
	}
	for text, want := range map[string]string{
		"":                             "f:1: the file is empty",
		"TIMESTAMP,ContextTokens\n":    "f:1: there is no column GeneratedTokens",
		"a,b,c\n1,2,3\n":               "f:1: there is no column TIMESTAMP",
		head:                           "f: the trace has no two requests",
		head + first + first:           "f: the trace has no two requests",
		head + first + "today,1,1\n":   `f:3: TIMESTAMP is not a time such as 2023-11-16 18:15:46.68: "today"`,
		head + first + "2023-11-16\n":  "f:3: wrong number of fields",
		head + "\n" + first + "\"\n":   "f:4: ",
		head + "2023-11-16 18:15:46,,": `f:2: ContextTokens is not a number from 0 to 1000000000: ""`,
		head + first + "2023-11-16 18:15:47,1,-1\n":                     `f:3: GeneratedTokens is not a number`,
		head + first + "2023-11-16 18:15:47,1,1000000001\n":             `f:3: GeneratedTokens is not a number`,
		head + first + "2023-11-16 18:15:47,1e3,1\n":                    `f:3: ContextTokens is not a number`,
		head + first + "2023-11-16 18:15:46,1,1\n":                      "f:3: the request is earlier than the one before",
		head + first + "2023-11-16 18:15:47,99999999999999999999,1\n":   `f:3: ContextTokens is not a number`,
		head + "2023-11-16 18:15:46,1,1\n2023-11-16 18:15:47,1,\"1\n\n": "f:4: ",
	} {
		if _, err := parse("f", strings.NewReader(text)); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

// The oracle counts what there was room for, and what not.
func TestAccount(t *testing.T) {
	a, err := newAccount(core.FixedWindow(10, time.Second))
	if err != nil {
		t.Fatal(err)
	}
	const second = 1_000_000
	for i, x := range []struct{ at, units, over, row int64 }{
		{0, 8, 0, 0},
		{1, 5, 3, 3},
		{2, 2, 2, 5},
		{1, 1, 1, 6},
		{3, 0, 0, 6},
		{second, 9, 0, 0},
		{second, 2, 1, 1},
		{2*second - 1, 10, 10, 11},
		{2 * second, 11, 1, 1},
	} {
		if fits := a.fits(x.at, x.units); x.units > 0 && fits != (x.over == 0) {
			t.Errorf("%d: %d fit: %t", i, x.units, fits)
		}
		if over, row := a.use(x.at, x.units); over != x.over || row != x.row {
			t.Errorf("%d: %d over, %d in a row, want %d and %d", i, over, row, x.over, x.row)
		}
	}
}

// Estimates that are never too low admit nothing above the limit, and a check with one request at a
// time at most this request; with more, as many.
func TestRuns(t *testing.T) {
	trace := read(t)
	var largest int64
	for _, r := range trace {
		largest = max(largest, r.tokens())
	}
	s := newStudy(trace, 10)
	over := map[string]int64{}
	check := func(t *testing.T, r run, got tally) {
		t.Helper()
		if got.requests != int64(len(trace)) || got.refused == got.requests || got.fitted > got.refused || got.worst > got.over || got.used == 0 {
			t.Errorf("%s: %+v", s.line(r, &got), got)
		}
		switch {
		case got.refused == 0 && r.flight < 64: // of which a user here has hardly more
			t.Errorf("nothing was refused: %s", s.line(r, &got))
		case r.way.name == ways[0].name && got.over > 0:
			t.Errorf("above the limit: %s", s.line(r, &got))
		case r.way.guess == nil && r.policy == "FixedWindow" && got.worst > int64(r.flight)*largest:
			t.Errorf("more than is in flight: %s", s.line(r, &got))
		}
		if strings.Count(s.line(r, &got), "|") != strings.Count(header, "|")/2 || strings.Contains(s.line(r, &got), "%!") {
			t.Error(s.line(r, &got))
		}
	}
	synctest.Test(t, func(t *testing.T) {
		for _, r := range s.runs("") {
			if r.store == "memory" {
				got, err := s.run(t.Context(), r)
				if err != nil {
					t.Fatal(err)
				}
				check(t, r, got)
				over[r.way.name] += got.over
			}
		}
	})
	if over[ways[0].name] >= over[ways[1].name] || over[ways[1].name] >= over[ways[2].name] {
		t.Errorf("above the limit, by ways: %v", over)
	}

	redistest.Start(t) // which says what to install
	url, stop, err := startRedis(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stop() }()
	for _, r := range s.runs(url) {
		if r.store != "memory" && r.flight == 8 && r.policy == "FixedWindow" && r.way.name != ways[1].name {
			var got tally
			var err error
			synctest.Test(t, func(t *testing.T) { got, err = s.run(t.Context(), r) })
			if err != nil {
				t.Fatal(err)
			}
			if check(t, r, got); got.calls == 0 || got.calls > 2*got.requests {
				t.Errorf("%d calls for %d requests", got.calls, got.requests)
			}
		}
	}
}
