package main

import (
	"encoding/json"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/exampletest"
	"github.com/headgate/headgate/internal/redistest"
)

func TestMain(m *testing.M) {
	if os.Getenv(workerVariable) != "" {
		main()
		return
	}
	exampletest.Main(m, main)
}

// patience bounds every wait.
const patience = 2 * time.Minute

// until waits until something is true.
func until(t *testing.T, s *exampletest.Server, what string, is func(view) bool) view {
	t.Helper()
	var last view
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		_, body := s.Do("GET", "/api/now")
		last = view{}
		if err := json.Unmarshal([]byte(body), &last); err != nil {
			t.Fatal(err, body)
		}
		if is(last) {
			return last
		}
		<-time.After(50 * time.Millisecond)
	}
	t.Fatalf("waited in vain: %s; now: %v", what, last)
	return last
}

// No count here depends on how fast the machine is: a worker has one request on its way, and
// sends none after it was told to wait.
func TestOutgoing(t *testing.T) {
	t.Parallel()
	for name, flags := range map[string]func() []string{
		"embedded": func() []string { return nil },
		"real":     func() []string { return []string{"-redis", "redis://" + redistest.Start(t).Addr() + "/0"} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := exampletest.Start(t, flags()...)
			if r, body := s.Do("GET", "/"); r.StatusCode != http.StatusOK || !strings.Contains(body, "Three processes") {
				t.Errorf("%s %s", r.Status, body)
			}
			sent := func(n int64) func(view) bool {
				return func(v view) bool {
					all := int64(0)
					for _, p := range v.Processes {
						if p.Sent < n/10 { // all of them take part
							return false
						}
						all += p.Sent
					}
					return all >= n && v.Admitted >= n
				}
			}
			first := until(t, s, "requests", sent(100))
			if first.Refused != 0 || first.Limit != highLimit {
				t.Errorf("at first: %v", first)
			}
			if r, _ := s.Do("POST", "/api/limit?low=true"); r.StatusCode != http.StatusNoContent {
				t.Error(r.Status)
			}
			lowered := until(t, s, "the lower limit", func(v view) bool { return v.Limit == lowLimit })
			last := until(t, s, "requests under the lower limit", sent(lowered.Admitted+100))
			if last.Refused > processes*workers {
				t.Errorf("after the limit was lowered: %v", last)
			}
			if r, _ := s.Do("POST", "/api/limit?low=1"); r.StatusCode != http.StatusBadRequest {
				t.Error(r.Status)
			}
			if r, _ := s.Do("POST", "/api/limit?low=false", "Sec-Fetch-Site", "cross-site"); r.StatusCode != http.StatusForbidden {
				t.Error(r.Status)
			}
			for _, p := range last.Processes {
				if p.Failed > 0 {
					t.Errorf("%d requests of a process failed", p.Failed)
				}
			}
			s.Stop()
		})
	}
}

func TestAWrongURLIsNotRepeated(t *testing.T) {
	if _, err := newTransport("redis://:geheim@localhost:port", nil); err == nil || strings.Contains(err.Error(), "geheim") {
		t.Errorf("%v", err)
	}
}
