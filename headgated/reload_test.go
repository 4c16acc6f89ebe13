package headgated_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/headgate/headgate/headgated"
	"github.com/headgate/headgate/internal/bubble"
	"github.com/headgate/headgate/internal/old/limits"
)

// blockedIn is a file of a domain in which nothing is admitted.
func blockedIn(domain string) string {
	return "domain: " + domain + "\ndescriptors:\n- {key: other}\n- {key: user, rate_limit: {unit: hour, requests_per_unit: 0}}\n"
}

// While the files of a directory change, no state between the old files and the new ones applies.
func TestDirectoryInTheMiddleOfAWrite(t *testing.T) {
	for name, test := range map[string]struct{ first, then map[string]string }{
		"in place": {
			map[string]string{"b.yaml": strings.Split(blockedIn("x"), "- {key: user")[0]},
			map[string]string{"b.yaml": blockedIn("x")},
		},
		"from file to file": {
			map[string]string{"b.yaml": blockedIn("y")},
			map[string]string{"a.yaml": blockedIn("x")},
		},
		"from file to new file": {
			map[string]string{"b.yaml": blockedIn("y")},
			map[string]string{"c.yaml": blockedIn("x")},
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			put := func(files map[string]string) {
				for name, text := range files {
					must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
				}
			}
			put(map[string]string{"a.yaml": blockedIn("z"), "b.yaml": blockedIn("x")})
			s := open(t, headgated.Config{EnvoyConfig: dir})
			refuses := func() {
				t.Helper()
				if w, _ := post(t, s.HTTP(), "/json", `{"domain": "x", "descriptors": [{"entries": [{"key": "user", "value": "anna"}]}]}`); w.Code != 429 {
					t.Errorf("the limit of x is gone: %d", w.Code)
				}
			}
			refuses()
			bubble.Test(t, func(t *testing.T) {
				put(test.first)
				go func() {
					time.Sleep(30 * time.Millisecond)
					refuses()
					put(test.then)
				}()
				must(t, s.Reload(t.Context()))
				time.Sleep(time.Second)
				refuses()
			})
		})
	}
}

// Files below the directory count too, also behind links, as a ConfigMap has them. Hidden ones do not.
func TestDirectories(t *testing.T) {
	dir := t.TempDir()
	put := func(name, domain string) {
		must(t, os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o700))
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(blockedIn(domain)), 0o600))
	}
	put("a/b/c.yaml", "nested")
	put("..data/d.yaml", "hidden")
	put("..data/linked/e.yaml", "linked")
	must(t, os.Symlink("..data/linked", filepath.Join(dir, "linked")))
	s, conn := serveRLS(t, headgated.Config{EnvoyConfig: dir})
	runSteps(t, pb.NewRateLimitServiceClient(conn), []step{
		{domain: "nested", of: ds{d("user=a")}, want: "OVER OVER:0"},
		{domain: "linked", of: ds{d("user=a")}, want: "OVER OVER:0"},
		{domain: "hidden", of: ds{d("user=a")}, want: "OK OK:0"},
	})
	must(t, os.Symlink("..", filepath.Join(dir, "a/up")))
	if err := s.Reload(t.Context()); err == nil || !strings.Contains(err.Error(), "more than 8 directories are in each other") {
		t.Errorf("a link that leads back: %v", err)
	}
}

// What is no regular file is a fault, and is not waited for.
func TestDirectoryWithOtherThings(t *testing.T) {
	for name, test := range map[string]struct {
		make func(name string) error
		want string
	}{
		"a named pipe":      {func(name string) error { return syscall.Mkfifo(name, 0o600) }, "is not a regular file"},
		"a device":          {func(name string) error { return os.Symlink("/dev/zero", name) }, "is not a regular file"},
		"a link to nothing": {func(name string) error { return os.Symlink("nothing", name) }, "no such file"},
		"a file of many bytes": {func(name string) error {
			_ = os.WriteFile(name, nil, 0o600)
			return os.Truncate(name, limits.MaxBytes+1)
		}, "more than 16777216"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			must(t, os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(blockedIn("x")), 0o600))
			s, conn := serveRLS(t, headgated.Config{EnvoyConfig: dir})
			must(t, test.make(filepath.Join(dir, "b.yaml")))
			if err := s.Reload(t.Context()); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Error(err)
			}
			runSteps(t, pb.NewRateLimitServiceClient(conn), []step{{domain: "x", of: ds{d("user=a")}, want: "OVER OVER:0"}})
		})
	}
}

// An override that applies to no address is in the log, by its place.
func TestNotesOfLimits(t *testing.T) {
	var log strings.Builder
	p := newPage("limits: {api: {plans: {api: sliding-log 4/hour}, overrides: [{key: '2001:db8::1', plan: api}]}}")
	s := open(t, headgated.Config{Document: p.load, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	check := func(want int) {
		t.Helper()
		if got := strings.Count(log.String(), "a note about the limits"); got != want || strings.Contains(log.String(), "2001:db8") {
			t.Errorf("%d notes\n%s", got, &log)
		}
	}
	if check(1); !strings.Contains(log.String(), `level=WARN msg="headgated: a note about the limits" note="line 1, column 68: keys of IPv6 are networks of 64 bits`) {
		t.Error(&log)
	}
	p.text.Store(simple)
	must(t, s.Reload(t.Context()))
	check(1)
	var all []string
	for i := range 30 {
		all = append(all, fmt.Sprintf("{key: '2001:db8::%d', plan: api}", i))
	}
	p.text.Store("limits: {api: {plans: {api: sliding-log 4/hour}, overrides: [" + strings.Join(all, ", ") + "]}}")
	must(t, s.Reload(t.Context()))
	if check(21); !strings.Contains(log.String(), "more notes about the limits\" notes=10") {
		t.Error(&log)
	}
}

// A document that never comes does not keep the server from ending.
func TestServeEndsWhileADocumentIsAwaited(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		texts := make(chan []byte, 1)
		texts <- []byte(simple)
		never := func(context.Context) ([]byte, error) { return <-texts, nil }
		s := open(t, headgated.Config{Document: never})
		defer close(texts)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		begin := time.Now()
		must(t, s.Serve(ctx))
		if took := time.Since(begin); took != time.Minute+10*time.Second {
			t.Error(took)
		}
	})
}

// Who gives up a reload has not found a fault.
func TestReloadIsGivenUp(t *testing.T) {
	s := open(t, headgated.Config{Document: source(simple)})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Reload(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if m := metric(t, s, "headgated_reload_failing"); strings.Contains(m, "} 1") {
		t.Error(m)
	}
	must(t, s.Reload(t.Context()))
}

// What begins anew is told, of descriptors too.
func TestLossesOfDescriptors(t *testing.T) {
	text := func(rule string) string {
		return "limits: {api: {plans: {api: sliding-log 4/hour}}}\nrls: [{domain: d, descriptors: [{key: user, " + rule + "}]}]"
	}
	const first = "rate_limit: {unit: year, requests_per_unit: 2}"
	for rule, lost := range map[string]bool{
		"rate_limit: {unit: day, requests_per_unit: 7}":                              true,
		"rate_limit: {unit: year, requests_per_unit: 7}":                             false,
		"rate_limit: {unit: year, requests_per_unit: 0}":                             false,
		"shadow_mode: true, " + first:                                                false,
		"rate_limit: {unlimited: true}":                                              false,
		"rate_limit: {name: shown, unit: year, requests_per_unit: 2}":                true,
		"headgate: {policy: sliding-window 2/hour}":                                  true,
		"headgate: {limit: api}":                                                     true,
		"descriptors: [{key: below, rate_limit: {unit: day, requests_per_unit: 7}}]": false,
	} {
		var log strings.Builder
		p := newPage(text(first))
		s := open(t, headgated.Config{Document: p.load, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		p.text.Store(text(rule))
		must(t, s.Reload(t.Context()))
		if told := strings.Contains(log.String(), "does not count any more"); told != lost || lost && !strings.Contains(log.String(), "descriptor=d.user") {
			t.Errorf("%s: %s", rule, &log)
		}
	}
}
