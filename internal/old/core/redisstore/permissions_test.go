package redisstore

import (
	"cmp"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/storetest"
	"github.com/headgate/headgate/internal/redistest"
)

// permissions are what a user of Redis needs for a prefix: the commands that are sent, and those that the scripts run.
// docs/redis.md has those of slots, too, of which package redisslots has the test.
const permissions = "+eval +evalsha +time +get +mget +set +getrange +setrange +pexpire +del +info"

// as makes a store of a user who may do that with the keys of a prefix.
func as(t testing.TB, server *redistest.Server, c Config, permissions string) *Store {
	t.Helper()
	c.Prefix = cmp.Or(c.Prefix, "headgate")
	words := append([]string{"ACL", "SETUSER", c.Prefix, "reset", "on", ">password", "~" + c.Prefix + ":*", "-@all"}, strings.Fields(permissions)...)
	if _, err := server.Do(words...); err != nil {
		t.Fatal(err)
	}
	return openWith(t, c, &redis.UniversalOptions{Addrs: []string{server.Addr()}, Username: c.Prefix, Password: "password"})
}

// With these permissions everything works.
func TestPermissionsAreEnough(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../../docs/redis.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "    ACL SETUSER app on >password ~headgate:* -@all ")
	line, _, _ := strings.Cut(rest, "\n\n")
	documented, needed := strings.Fields(line), strings.Fields(permissions)
	for _, command := range needed {
		if !slices.Contains(documented, command) {
			t.Errorf("docs/redis.md lacks %s", command)
		}
	}
	server := redistest.Start(t)
	c := handClock()
	storetest.Run(t, storetest.Harness{
		New: func(t *testing.T, o *core.Observer) core.Store {
			server.Flush()
			s := as(t, server, Config{RefusalTTL: -1, Failure: FailClosed, Observer: o}, permissions)
			c.tell(s)
			return s
		},
		Now:        c.now,
		Advance:    func(d time.Duration) { c.move(d.Microseconds()) },
		Back:       func(d time.Duration) { c.move(-d.Microseconds()) },
		Operations: 100,
	})
	r, err := as(t, server, Config{}, permissions).Check(t.Context())
	if err != nil || !r.OK() {
		t.Errorf("%v: %v", err, r)
	}
}

// Without one of them, Check names that, and whatever does not work is unavailable until it
// does: the breaker does not open and close many times.
func TestPermissionsAreNeeded(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	for missing := range strings.FieldsSeq(permissions) {
		t.Run(missing[1:], func(t *testing.T) {
			t.Parallel()
			var changes atomic.Int64
			o := &core.Observer{Changed: func(error) { changes.Add(1) }}
			s := as(t, server, Config{Failure: FailOpen, Observer: o, Prefix: missing[1:]}, strings.Replace(permissions+" ", missing+" ", "", 1))
			r, err := s.Check(t.Context())
			named := regexp.MustCompile(`(?i)(missing, or not permitted: .*\b|NOPERM.*')` + missing[1:] + `\b`)
			if err != nil || !named.MatchString(fmt.Sprint(r.Problems)) {
				t.Errorf("Check: %v: %v", err, r.Problems)
			}
			l := newLimiter(t, s, "api", somePolicies(4, 100)...)
			for start := time.Now(); time.Since(start) < 500*time.Millisecond; {
				allow(t, l, "k", 1)
				<-time.After(time.Millisecond)
			}
			if n := changes.Load(); n > 1 {
				t.Errorf("the breaker has changed %d times", n)
			}
		})
	}
}
