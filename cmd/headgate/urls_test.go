package main

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/redistest"
)

// All commands take the URLs of one server, a Cluster and Sentinels, with a password that changes all the time.
func TestURLs(t *testing.T) {
	for name, start := range map[string]func(t *testing.T) (redistest.Servers, string){
		"one server": func(t *testing.T) (redistest.Servers, string) {
			server := redistest.Start(t)
			return redistest.Servers{server}, "redis://app@" + server.Addr()
		},
		"Cluster": func(t *testing.T) (redistest.Servers, string) {
			all := redistest.StartCluster(t, 3, 0).Masters
			return all, "redis://app@" + all[0].Addr() + "?addr=" + all[1].Addr()
		},
		"Sentinel": func(t *testing.T) (redistest.Servers, string) {
			d := redistest.StartSentinel(t)
			return d.Servers, "redis://" + d.Addrs()[0] + "?master_name=" + redistest.MasterName + "&username=app&addr=" + d.Addrs()[1]
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all, url := start(t)
			password := filepath.Join(t.TempDir(), "password")
			redistest.Rotate(t, all, "app", password, 50*time.Millisecond)
			does := func(code int, want string, args ...string) {
				t.Helper()
				args = append(args, "-redis", url, "-redis-password-file", password, "-timeout", patient.String())
				got, out, stderr := headgate(t, "", args...)
				if got != code || !strings.Contains(out+stderr, want) {
					t.Errorf("%s: %d %s%s\nnot %d %s", args, got, out, stderr, code, want)
				}
			}
			limits := file(t, "limits.yaml", good)
			for range 5 {
				does(0, "servers have it", "push", limits, "-wait", "1s")
				does(0, "sliding-log 6/minute", "pull")
				does(0, "6 of 6 left", "peek", "api", "bert")
				does(0, "is forgotten", "reset", "api", "bert")
				does(0, "no problem was found", "ping")
			}
			password += ".none"
			does(2, "the file of the password of Redis: no such file", "ping")
		})
	}
}

// What is wrong with a URL is said without it.
func TestURLFaults(t *testing.T) {
	for url, want := range map[string]string{
		"redis://anna@h/1?addr=h:1":                   "a Cluster has no database but 0",
		"redis://anna@h?addr=geheim":                  "the URL has not the form",
		"redis://h?master_name=geheim&password=a@b":   "the URL has not the form",
		"redis://h?master_name=x&replica_only=true":   "a replica is behind its master",
		"redis://anna:geheim@h?addr=h:1":              "give one of them",
		"redis://h?master_name=geheim&password=anna1": "give one of them",
	} {
		code, out, stderr := headgate(t, "", "pull", "-redis", url, "-redis-password-file", "x")
		if code != 2 || !strings.Contains(stderr, want) || strings.Contains(out+stderr, "geheim") || strings.Contains(out+stderr, "anna") {
			t.Errorf("%s: %d %s%s", url, code, out, stderr)
		}
	}
}
