package redisstore

import "testing"

// notShort skips a test that takes seconds, such as one of a failover, under -short.
func notShort(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("it takes seconds: not with -short")
	}
}
