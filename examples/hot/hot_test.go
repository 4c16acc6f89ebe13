package main

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/exampletest"
	"github.com/headgate/headgate/internal/redistest"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

// patience bounds every wait.
const patience = time.Minute

// until waits for a second in which something is true.
func until(t *testing.T, s *exampletest.Server, what string, is func(second) bool) second {
	t.Helper()
	var last second
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		_, body := s.Do("GET", "/api/second")
		last = second{}
		if err := json.Unmarshal([]byte(body), &last); err != nil {
			t.Fatal(err, body)
		}
		var asked int64
		for _, x := range last.Servers {
			asked += x.Asked
		}
		if asked != last.Asked {
			t.Fatalf("the servers were asked %d times, together %d", asked, last.Asked)
		}
		if is(last) {
			return last
		}
		<-time.After(50 * time.Millisecond)
	}
	t.Fatalf("waited in vain: %s; the last second: %v", what, last)
	return last
}

func TestHot(t *testing.T) {
	t.Parallel()
	for name, flags := range map[string]func(t *testing.T) []string{
		"embedded": func(*testing.T) []string { return nil },
		"real":     func(t *testing.T) []string { return []string{"-redis", "redis://" + redistest.Start(t).Addr() + "/0"} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := exampletest.Start(t, append(flags(t), "-demand", "4000", "-limit", "2000")...)
			if r, body := s.Do("GET", "/"); r.StatusCode != http.StatusOK || !strings.Contains(body, "One hot key") {
				t.Errorf("%s %s", r.Status, body)
			}
			// How much of the limit is admitted depends on the machine: on a busy one a call takes most of a window.
			until(t, s, "few calls", func(x second) bool {
				// A second may be counted long after its window.
				if x.Admitted > 2*x.Limit {
					t.Errorf("over the limit: %v", x)
				}
				return x.Leases && len(x.Servers) == servers && x.Admitted > 0 && x.Calls*5 < x.Asked
			})
			if r, _ := s.Do("POST", "/api/leases?on=false"); r.StatusCode != http.StatusNoContent {
				t.Error(r.Status)
			}
			until(t, s, "no leases", func(x second) bool { return !x.Leases && x.Calls > 0 })
			if r, _ := s.Do("POST", "/api/leases?on=1"); r.StatusCode != http.StatusBadRequest {
				t.Error(r.Status)
			}
			if r, _ := s.Do("POST", "/api/leases?on=true", "Sec-Fetch-Site", "cross-site"); r.StatusCode != http.StatusForbidden {
				t.Error(r.Status)
			}
			s.Stop()
		})
	}
}

func TestAWrongURLIsNotRepeated(t *testing.T) {
	if err := run(t.Context(), "", "redis://:geheim@localhost:port", 1, 1, false); err == nil || strings.Contains(err.Error(), "geheim") {
		t.Errorf("%v", err)
	}
}
