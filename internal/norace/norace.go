// Package norace is for tests in which the race detector would find nothing, and takes five to ten
// times as long. They have one goroutine, or spend their time in the code of others. make race runs
// them without it.
package norace

import "testing"

// Test skips a test under the race detector. It must be the first line of a test in one of the
// NORACE_DIRS of the Makefile: there make race looks for it.
func Test(t *testing.T) {
	t.Helper()
	if detector {
		t.Skip("nothing for the race detector")
	}
}
