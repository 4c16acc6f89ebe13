package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/redistest"
)

// TestMain lets the test be one of the processes.
func TestMain(m *testing.M) {
	if slices.Contains(os.Args, "-serve") {
		main()
		return
	}
	m.Run()
}

func TestProcesses(t *testing.T) {
	addr := redistest.Start(t).Addr()
	s := &server{addr: addr, admin: redis.NewClient(&redis.Options{Addr: addr})}
	defer s.admin.Close()
	c := config{rounds: 1, duration: 20 * time.Millisecond, run: regexp.MustCompile("")}
	lines, err := processes(t.Context(), c, s, []int{1, 2})
	if err != nil {
		t.Fatal(err)
	}
	all := table(lines)
	for _, system := range hot {
		if n := strings.Count(all, "| "+system.name+" |"); n != 4 {
			t.Errorf("%s is there %d times:\n%s", system.name, n, all)
		}
	}
	if strings.Contains(all, "NaN") {
		t.Error(all)
	}
}

func TestSystemsKeepTheLimit(t *testing.T) {
	addr := redistest.Start(t, "databases 32").Addr()
	for i, s := range append(slices.Clone(systems), hot[0]) {
		t.Run(s.name, func(t *testing.T) {
			c, err := openSystem(t.Context(), s, redis.Options{Addr: addr, DB: i})
			if err != nil {
				t.Fatal(err)
			}
			defer c.close()
			if s.name == counter {
				return
			}
			for range 5 {
				if ok, err := c.refused(t.Context(), hotKey); err != nil || ok {
					t.Errorf("over the limit: %v, %v", ok, err)
				}
			}
			for i := range 2 * tight.n {
				if ok, err := c.refused(t.Context(), "client"); err != nil || ok != (i < tight.n) {
					t.Errorf("call %d: %v, %v", i+1, ok, err)
				}
			}
			for i := range 50 {
				if ok, err := c.admitted(t.Context(), "other client"); err != nil || !ok {
					t.Errorf("call %d within the limit: %v, %v", i+1, ok, err)
				}
			}
			if c.many != nil {
				if err := c.many(t.Context(), []string{"a", "b"}); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func TestStudy(t *testing.T) {
	s := redistest.Start(t, "databases 32")
	b := bench{
		// So many keys that no machine uses one up.
		config: config{rounds: 2, duration: 5 * time.Millisecond, slices: 2, keys: 5000, run: regexp.MustCompile("TokenBucket|redis_rate|pipeline")},
		server: &server{addr: s.Addr(), admin: redis.NewClient(&redis.Options{Addr: s.Addr()})},
	}
	defer b.server.admin.Close()
	if err := b.open(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer b.close()
	if err := b.measure(t.Context()); err != nil {
		t.Fatal(err)
	}
	report := b.report("7")
	for _, want := range []string{"| headgate TokenBucket |", "| redis_rate |", "| 1.00 x |", "client µs", scenarios[3].name} {
		if !strings.Contains(report, want) {
			t.Errorf("no %q in\n%s", want, report)
		}
	}
	if strings.Contains(report, "(wrong") || strings.Contains(report, "NaN") {
		t.Error(report)
	}
}
