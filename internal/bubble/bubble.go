// Package bubble runs tests in a bubble of testing/synctest, so that the race detector
// can watch them.
package bubble

import (
	"runtime"
	"testing"
	"testing/synctest"
)

// Test is [synctest.Test] on one processor. Under Go 1.25 and 1.26, two timers of a bubble that end
// on two processors at once crash the race detector. They share one of its contexts. Tests that run
// beside it have one processor too.
func Test(t *testing.T, f func(*testing.T)) {
	t.Helper()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	synctest.Test(t, f)
}
