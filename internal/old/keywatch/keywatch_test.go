package keywatch

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/keyfuncs"
)

// A log has the records of a Watch of two rules.
type log struct {
	*Watch
	text bytes.Buffer
}

func newLog() *log {
	l := new(log)
	l.Watch = New("guard", slog.New(slog.NewTextHandler(&l.text, nil)), []string{"api", "login"}, false)
	return l
}

// records are the texts that were logged since the last call.
func (l *log) records() []string {
	defer l.text.Reset()
	return strings.Split(strings.TrimSuffix(l.text.String(), "\n"), "\n")[:strings.Count(l.text.String(), "\n")]
}

// want says that there is one record, which contains all parts.
func (l *log) want(t *testing.T, parts ...string) {
	t.Helper()
	records := l.records()
	if len(records) != 1 {
		t.Fatalf("%d records: %q", len(records), records)
	}
	for _, part := range parts {
		if !strings.Contains(records[0], part) {
			t.Errorf("%q is not in %s", part, records[0])
		}
	}
}

func (l *log) wantNone(t *testing.T) {
	t.Helper()
	if records := l.records(); len(records) > 0 {
		t.Errorf("%q", records)
	}
}

var errSame = fmt.Errorf("%w: header X-User", keyfuncs.ErrAbsent)

func TestWithoutKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, r := newLog(), httptest.NewRequest("GET", "/", nil)
		for range 59 { // a second short of a minute
			l.See(0, r, "", errSame)
			time.Sleep(time.Second)
		}
		l.See(0, r, "", errSame)
		l.See(0, r, "anna", nil) // and then one with a key
		time.Sleep(time.Second)
		l.See(0, r, "", errSame)
		time.Sleep(time.Minute - 1)
		l.See(0, r, "", errSame)
		l.wantNone(t)
		time.Sleep(time.Nanosecond)
		l.See(1, r, "", errSame) // the minute of another rule
		l.wantNone(t)
		l.See(0, r, "", errSame)
		l.want(t, "level=WARN", `msg="headgate: guard: no request had a key`, "rule=0", "limit=api", "requests=3", "absent: header X-User")
		time.Sleep(time.Hour)
		l.See(0, r, "", errSame)
		l.See(1, r, "", errSame)
		l.See(0, r, "anna", nil)
		l.See(0, r, "", errSame)
		time.Sleep(time.Hour)
		l.See(0, r, "", errSame)
		l.wantNone(t) // once for a guard
	})
}

// A keyError has a key in it, and is equal to another of the key.
type keyError struct{ key string }

func (e keyError) Error() string { return "no such user: " + e.key }

// TestReasons: the text of an error that may be about one request is not logged.
func TestReasons(t *testing.T) {
	for name, test := range map[string]struct {
		err  func() error
		want string
	}{
		"the very same":     {func() error { return errSame }, `reason="headgate: keyfuncs: absent: header X-User"`},
		"absent":            {func() error { return fmt.Errorf("%w: anna", keyfuncs.ErrAbsent) }, `reason="headgate: keyfuncs: absent"`},
		"the program":       {func() error { return fmt.Errorf("%w: anna", keyfuncs.ErrProgram) }, `reason="headgate: keyfuncs: error of the program"`},
		"another":           {func() error { return errors.New("anna") }, other},
		"equal, no pointer": {func() error { return keyError{"anna"} }, other},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, r := newLog(), httptest.NewRequest("GET", "/", nil)
				l.See(0, r, "", test.err())
				time.Sleep(time.Minute)
				l.See(0, r, "", test.err())
				text := l.text.String()
				if l.want(t, test.want); strings.Contains(text, "anna") {
					t.Error("the record has the key")
				}
			})
		})
	}
}

// TestConcurrent: one record, however many requests see the fault at once.
func TestConcurrent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLog()
		behind := httptest.NewRequest("GET", "/", nil)
		behind.RemoteAddr, behind.Header["X-Forwarded-For"] = "10.0.0.1:80", []string{"203.0.113.7"}
		for range 2 {
			var all sync.WaitGroup
			for range 8 {
				all.Go(func() {
					for range 100 {
						l.See(0, behind, "", errSame)
						l.See(1, behind, "10.0.0.1", nil)
					}
				})
			}
			all.Wait()
			time.Sleep(time.Minute)
		}
		if records := l.records(); len(records) != 2 {
			t.Errorf("%q", records)
		}
	})
}

func TestProxies(t *testing.T) {
	const client = "203.0.113.7"
	address := keyfuncs.RemoteAddr()
	trusting := func(networks ...string) keyfuncs.Func {
		return keyfuncs.XForwardedFor(networks...)
	}
	for _, test := range []struct {
		name, peer, forwarded string
		key                   keyfuncs.Func
		fault                 bool
	}{
		{"a proxy", "10.0.0.1:80", client, address, true},
		{"a proxy on this machine", "127.0.0.1:80", client, address, true},
		{"of a private network of IPv6", "[fd00::1]:80", client, address, true},
		{"of a link", "[fe80::1%eth0]:80", client, address, true},
		{"mapped", "[::ffff:10.0.0.1]:80", client, address, true},
		{"within First", "10.0.0.1:80", client, keyfuncs.First(keyfuncs.Tag("user", keyfuncs.Header("X-User")), keyfuncs.Tag("ip", address)), true},
		{"the first of All", "10.0.0.1:80", client, keyfuncs.All(address, keyfuncs.Everyone()), true},
		{"the last of All", "10.0.0.1:80", client, keyfuncs.All(keyfuncs.Everyone(), address), true},
		{"not trusted", "192.168.0.1:80", client, trusting("10.0.0.0/8"), true},
		{"no proxy", "10.0.0.1:80", "", address, false},
		{"a client writes it", "198.51.100.1:80", client, address, false},
		{"a socket", "@", client, keyfuncs.Everyone(), false},
		{"another key", "10.0.0.1:80", client, keyfuncs.Everyone(), false},
		{"trusted", "10.0.0.1:80", client, trusting("10.0.0.0/8"), false},
		{"a client of a longer address", "10.0.0.1:80", "10.0.0.12", trusting("10.0.0.1"), false},
		{"a client of a longer address, within All", "10.0.0.1:80", "10.0.0.12", keyfuncs.All(keyfuncs.Everyone(), trusting("10.0.0.1")), false},
	} {
		t.Run(test.name, func(t *testing.T) {
			l, r := newLog(), httptest.NewRequest("GET", "/", nil)
			r.RemoteAddr = test.peer
			if test.forwarded != "" {
				r.Header.Set("X-Forwarded-For", test.forwarded)
			}
			key, err := test.key(r)
			if err != nil {
				t.Fatal(err)
			}
			for range 3 {
				l.See(1, r, key, nil)
			}
			if !test.fault {
				l.wantNone(t)
				return
			}
			text := l.text.String()
			l.want(t, "level=WARN", "the address of a proxy", "rule=1", "limit=login")
			for _, secret := range []string{"10.0.0.1", "192.168.0.1", "127.0.0.1", "fd00", "fe80", client} {
				if strings.Contains(text, secret) {
					t.Errorf("%s is in the record", secret)
				}
			}
		})
	}
}

// TestLooks: proxies are looked for in so many requests only. Those that anybody can send are not
// among them.
func TestLooks(t *testing.T) {
	for before, want := range map[int]int{looks - 1: 1, looks: 0} {
		l, r := newLog(), httptest.NewRequest("GET", "/", nil)
		r.Header.Set("X-Forwarded-For", "203.0.113.7")
		for range looks { // from 192.0.2.1
			l.See(0, r, "203.0.113.7", nil)
		}
		r.RemoteAddr = "10.0.0.1:80"
		for range before {
			l.See(0, r, "203.0.113.7", nil)
		}
		l.See(0, r, "10.0.0.1", nil)
		if got := len(l.records()); got != want {
			t.Errorf("%d records after %d requests", got, before)
		}
	}
}
