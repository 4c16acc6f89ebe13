package redistest

import (
	"context"
	"crypto/rand"
	"os"
	"sync"
	"testing"
	"time"
)

// Rotate makes a user with all permissions on these servers, who gets another password each time a period is over, as
// from a sidecar that renews tokens. The file has the newest. It and the one before are valid. It goes on until the
// test ends.
func Rotate(t testing.TB, all Servers, user, file string, period time.Duration) {
	t.Helper()
	var passwords []string
	rotate := func() error {
		passwords = append(passwords, rand.Text())
		newest := len(passwords) - 1
		rules := []string{"ACL", "SETUSER", user, "on", "~*", "&*", "+@all", ">" + passwords[newest]}
		if newest > 1 {
			rules = append(rules, "<"+passwords[newest-2])
		}
		for _, s := range all {
			if _, err := s.Do(rules...); err != nil {
				return err
			}
		}
		if err := os.WriteFile(file+".new", []byte(passwords[newest]+"\n"), 0o600); err != nil {
			return err
		}
		return os.Rename(file+".new", file)
	}
	if err := rotate(); err != nil {
		t.Fatal("redistest: a password is not changed:", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var rotating sync.WaitGroup
	rotating.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(period):
			}
			if err := rotate(); err != nil {
				t.Error("redistest: a password is not changed:", err)
				return
			}
		}
	})
	t.Cleanup(func() {
		stop()
		rotating.Wait()
	})
}
