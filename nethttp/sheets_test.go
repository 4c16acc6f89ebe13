package nethttp

import (
	"testing"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
)

// Limiters made for each request, which is not recommended, do not pile up.
func TestSheetsAreBounded(t *testing.T) {
	store := memstore.New(memstore.Config{})
	var m sheets
	for range 3*maxSheets + 1 {
		l, err := core.New(store, "api", core.Blocked())
		if err != nil {
			t.Fatal(err)
		}
		if first := m.of(l); m.of(l) != first {
			t.Fatal("a sheet was written twice")
		}
	}
	n := 0
	m.byLimiter.Range(func(any, any) bool { n++; return true })
	if n > maxSheets {
		t.Errorf("%d sheets are kept", n)
	}
}
