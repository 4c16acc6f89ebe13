package headgated_test

import (
	"strings"
	"testing"

	"github.com/headgate/headgate/headgated"
)

// Metrics tell how many slots of a document are held, and how many claims were refused.
func TestSlotsHaveMetrics(t *testing.T) {
	s := open(t, headgated.Config{Document: source(slotted), HTTP: "127.0.0.1:0"})
	addrs, stop := serve(t, s)
	defer func() { must(t, stop()) }()
	has := func(want ...string) {
		t.Helper()
		got := metric(t, s, "headgate_slot")
		for _, line := range want {
			if !strings.Contains(got, line+"\n") && !strings.HasSuffix(got, line) {
				t.Errorf("no %s in\n%s", line, got)
			}
		}
	}
	first := hold(t, addrs.HTTP, claim("export", "anna"))
	if line := first.line(); line != `{"held":true}` {
		t.Fatal(line)
	}
	has(`headgate_slots_held{slots="export"} 1`)
	if second := hold(t, addrs.HTTP, claim("export", "anna")); second.StatusCode != 429 {
		t.Errorf("%d", second.StatusCode)
	}
	has(`headgate_slot_claims_total{result="admitted",slots="export",source="store"} 1`,
		`headgate_slot_claims_total{result="refused",slots="export",source="store"} 1`)
}
