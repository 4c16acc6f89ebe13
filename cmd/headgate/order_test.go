package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// However the lines of a log are ordered, and whatever logs they are in, the requests are decided
// about in the order of their times.
func TestTryOrder(t *testing.T) {
	document := file(t, "limits.json", `{"limits": {"api": {"plans": {"free": {"log": "sliding-log 5/minute", "bucket": "token-bucket 1/10s burst 4"}}}}}`)
	random := rand.New(rand.NewPCG(5, 6))
	at := time.Date(2026, 10, 10, 13, 55, 36, 1000, time.UTC)
	var lines []string
	for range 5000 {
		at = at.Add(time.Duration(1+random.IntN(4_000_000)) * time.Microsecond)
		lines = append(lines, fmt.Sprintf(`{"time": %q, "ip": "10.0.0.%d"}`, at.Format(time.RFC3339Nano), random.IntN(3)))
	}
	var odd, even []string
	for i, line := range lines {
		if random.IntN(2) == 0 {
			odd = append(odd, lines[i])
		} else {
			even = append(even, line)
		}
	}
	shuffled := slices.Clone(lines)
	random.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	try := func(logs ...[]string) string {
		t.Helper()
		args := []string{"try", document}
		for _, log := range logs {
			args = append(args, "-access-log", file(t, "log", strings.Join(log, "\n")))
		}
		code, out, stderr := headgate(t, "", args...)
		if code != 1 || strings.Contains(out, "too far behind") {
			t.Errorf("%d, %s", code, stderr)
		}
		_, trial, _ := strings.Cut(out, "\n\n")
		return trial
	}
	want := try(lines)
	for name, got := range map[string]string{
		"shuffled": try(shuffled), "one after the other": try(slices.Concat(odd, even)), "two logs": try(odd, even), "and back": try(even, odd),
		"two logs, shuffled": try(shuffled[:2000], shuffled[2000:]),
	} {
		if got != want {
			t.Errorf("%s: %s, not %s", name, got, want)
		}
	}
}

// What is held of a log is bounded: a request that is behind more than that comes late, and is
// counted.
func TestOrderIsBounded(t *testing.T) {
	log := func(place int, seconds ...int) *orderedLog {
		return &orderedLog{place: place, most: 3, read: func() (q request, ok bool, err error) {
			if len(seconds) == 0 {
				return q, false, nil
			}
			q = request{at: time.Unix(int64(seconds[0]), 0), key: fmt.Sprint(place, ":", seconds[0])}
			seconds = seconds[1:]
			return q, true, nil
		}}
	}
	logs := []*orderedLog{log(0, 3, 2, 1, 9, 8, 7, 4, 5, 6, 7), log(1), log(2, 7, 7, 6, 10)}
	var got []string
	if err := merge(t.Context(), slices.Clone(logs), func(q request) { got = append(got, q.key) }); err != nil {
		t.Fatal(err)
	}
	want := "0:1 0:2 0:3 2:6 0:7 0:4 0:5 0:6 0:7 2:7 2:7 0:8 0:9 2:10"
	if strings.Join(got, " ") != want || logs[0].early != 5 || logs[2].early != 1 {
		t.Errorf("%s, not %s; %d and %d early", got, want, logs[0].early, logs[2].early)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := merge(ctx, []*orderedLog{log(0, 1)}, func(request) {}); err == nil {
		t.Error("the end of the context is not heeded")
	}
}

// An IPv6 address counts as its network, as the key functions have it; what is none is itself.
func TestTryGroupsAddresses(t *testing.T) {
	r := newLogReader()
	for key, want := range map[string]string{
		"2001:db8:1:2:3:4:5:6": "2001:db8:1:2::/64", "[2001:DB8:1:2::7]": "2001:db8:1:2::/64", "::ffff:192.0.2.1": "192.0.2.1",
		"192.0.2.7:50001": "192.0.2.7", "[2001:db8:1:2::9]:443": "2001:db8:1:2::/64", "[::ffff:192.0.2.7]:1": "192.0.2.7", "192.0.2.7:x": "192.0.2.7:x",
		"64:ff9b::c000:201": "192.0.2.1", "fe80::1%eth0": "fe80::/64",
		"192.0.2.1": "192.0.2.1", "user:42": "user:42", "a:b:c": "a:b:c", "": "", "[": "[", "::/64": "::/64",
	} {
		if got := r.group(key); got != want {
			t.Errorf("%q is %q, not %q", key, got, want)
		}
	}
	document := file(t, "limits.json", `{"limits": {"api": {"plans": {"free": "sliding-log 20/minute"}}}}`)
	var log strings.Builder
	for i := range 200 {
		fmt.Fprintf(&log, "2001:db8:1:2::%x - - [10/Oct/2026:13:55:36 +0000] \"GET / HTTP/1.1\" 200 -\n", i+1)
	}
	if _, out, _ := headgate(t, log.String(), "try", document, "-access-log", "-"); !strings.Contains(out, "20 admitted, 180 refused") {
		t.Error(out)
	}
}
