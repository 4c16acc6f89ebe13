package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// A load is a program that sends requests as fast as they are answered.
type load struct {
	name string
	path string
	args func(connections int, d time.Duration) []string
}

// newLoad is wrk, which costs least, or hey, which needs Go alone.
func newLoad(ctx context.Context) (load, error) {
	if path, err := exec.LookPath("wrk"); err == nil {
		return load{"wrk", path, func(connections int, d time.Duration) []string {
			return []string{"--latency", "--timeout", "30s", "-t1", fmt.Sprintf("-c%d", connections), fmt.Sprintf("-d%.0fs", d.Seconds())}
		}}, nil
	}
	return newHey(ctx)
}

func newHey(ctx context.Context) (load, error) {
	path, err := exec.CommandContext(ctx, "go", "tool", "-n", "hey").Output()
	return load{"hey", strings.TrimSpace(string(path)), func(connections int, d time.Duration) []string {
		return []string{"-c", strconv.Itoa(connections), "-z", d.String()}
	}}, err
}

// run sends requests for a time.
func (l load) run(ctx context.Context, url string, connections int, d time.Duration) (f figures, err error) {
	others := fmt.Sprintf("1-%d", max(1, runtime.NumCPU()-1))
	out, err := pinned(ctx, others, l.path, append(l.args(connections, d), url)...).CombinedOutput()
	if err != nil {
		return f, fmt.Errorf("%s: %w\n%s", l.name, err, out)
	}
	return parse(string(out))
}

var (
	rate     = regexp.MustCompile(`Requests/sec:\s+([\d.]+)`)
	requests = regexp.MustCompile(`(\d+) requests in|\[200\]\s+(\d+) responses`)
	fault    = regexp.MustCompile(`Non-2xx|Socket errors|Error distribution|\[[13-5]\d\d\]\s+\d+ responses`)
	quantile = regexp.MustCompile(`(\d\d)%+\s+(?:in )?([\d.]+) ?(us|ms|secs|s)`)
)

// parse reads the output of wrk or hey, which are nearly the same.
func parse(out string) (f figures, err error) {
	if fault.MatchString(out) {
		return f, errors.New("not all requests were served:\n" + out)
	}
	number := func(r *regexp.Regexp) float64 {
		n := 0.0
		for _, s := range r.FindStringSubmatch(out) {
			if v, err := strconv.ParseFloat(s, 64); err == nil {
				n = v
			}
		}
		return n
	}
	f.perSecond, f.requests = number(rate), number(requests)
	for _, q := range quantile.FindAllStringSubmatch(out, -1) {
		v, _ := strconv.ParseFloat(q[2], 64)
		v *= map[string]float64{"us": 1, "ms": 1e3, "s": 1e6, "secs": 1e6}[q[3]]
		switch q[1] {
		case "50":
			f.p50 = v
		case "99":
			f.p99 = v
		}
	}
	if f.perSecond == 0 || f.requests == 0 || f.p50 == 0 || f.p99 == 0 {
		return f, errors.New("not understood:\n" + out)
	}
	return f, nil
}
