package shop

import (
	"encoding/json"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/core"
)

// TestRefusal says what was violated, and when to come again.
func TestRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		send := client(t, new(core.MemoryStore))
		for range 60 {
			send("ann")
		}
		time.Sleep(15 * time.Second)
		w := send("ann")
		if w.Code != 429 {
			t.Fatalf("status %d", w.Code)
		}
		for name, want := range map[string]string{
			"Retry-After":      "45", // seconds until the next request is admitted
			"RateLimit":        `"minute";r=0;t=45, "day";r=940;t=86385`,
			"RateLimit-Policy": `"minute";q=60;w=60, "day";q=1000;w=86400`,
			"Cache-Control":    "no-store",
			"Content-Type":     "application/problem+json",
		} {
			if got := w.Header().Get(name); got != want {
				t.Errorf("%s is %s, want %s", name, got, want)
			}
		}
		var problem struct {
			Status   int
			Violated []string `json:"violated-policies"`
		}
		if err := json.Unmarshal(w.Body.Bytes(), &problem); err != nil {
			t.Fatal(err)
		}
		if problem.Status != 429 || !slices.Equal(problem.Violated, []string{"minute"}) {
			t.Errorf("the body is %s", w.Body)
		}
	})
}
