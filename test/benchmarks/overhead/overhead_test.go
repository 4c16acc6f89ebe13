package main

import (
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if !serveIfChild() {
		m.Run()
	}
}

func TestStudy(t *testing.T) {
	hey, err := newHey(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	hey.args = func(int, time.Duration) []string { return []string{"-c", "2", "-n", "200"} } // however long they take
	c := config{rounds: 2, run: regexp.MustCompile("^Echo"), load: hey}
	found, err := study(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	table := report(c, found)
	for _, row := range []string{`\n\| Echo \| \d+ \|  \| `, `\n\| Echo, headgate-echo \| \d+ \| [\d.]+ % \| `, `\n\| Echo, echo \| \d+ \| [\d.]+ % \| `} {
		if !regexp.MustCompile(row).MatchString(table) {
			t.Errorf("no %s in\n%s", row, table)
		}
	}
	if strings.Contains(table, "NaN") {
		t.Error(table)
	}
}

func TestParse(t *testing.T) {
	const wrk = `Running 3s test @ http://127.0.0.1:1/
  1 threads and 64 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     1.46ms    1.02ms  21.61ms   95.53%
    Req/Sec    45.96k     3.41k   51.02k    73.33%
  Latency Distribution
     50%  950.00us
     75%    1.48ms
     90%    1.70ms
     99%    6.50ms
  137199 requests in 3.00s, 16.75MB read
Requests/sec:  45693.93
Transfer/sec:      5.58MB
`
	f, err := parse(wrk)
	if want := (figures{requests: 137199, perSecond: 45693.93, p50: 950, p99: 6500}); err != nil || f != want {
		t.Errorf("%+v, %v", f, err)
	}
	const hey = `
Summary:
  Requests/sec:	20123.5

Response time histogram:
  0.000 [401]	|■

Latency distribution:
  10%% in 0.0001 secs
  50%% in 0.0002 secs
  99%% in 0.0010 secs

Status code distribution:
  [200]	60370 responses
`
	f, err = parse(hey)
	if want := (figures{requests: 60370, perSecond: 20123.5, p50: 200, p99: 1000}); err != nil || f != want {
		t.Errorf("%+v, %v", f, err)
	}
	for _, out := range []string{"", wrk + "  Non-2xx or 3xx responses: 1\n", hey + "  [429]	1 responses\n", strings.ReplaceAll(wrk, "99%", "98%")} {
		if _, err := parse(out); err == nil {
			t.Errorf("no fault in %s", out)
		}
	}
}
