package redisurl_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/redisurl"
)

// open opens a URL, and closes the client. An error shows no part of the URL.
func open(t *testing.T, text string, c redisurl.Config) (redis.UniversalClient, error) {
	t.Helper()
	client, err := redisurl.Open(text, c)
	if err == nil {
		t.Cleanup(func() { _ = client.Close() })
		return client, nil
	}
	for _, part := range []string{"geheim", "anna", "hauptserver", "10.0.0"} {
		if strings.Contains(err.Error(), part) {
			t.Errorf("%s: %v", text, err)
		}
	}
	return nil, err
}

func TestForms(t *testing.T) {
	const (
		one      = "one server"
		cluster  = "a Cluster"
		sentinel = "Sentinel"
		form     = "the URL has not the form"
		database = "no database but 0"
		replicas = "a replica is behind"
	)
	for text, want := range map[string]string{
		"redis://anna:p%2Fss@10.0.0.1:6380/3":        one,
		"redis://anna:p@ss@10.0.0.1:6380/3":          one,
		"unix://anna:geheim@/run/redis.sock?db=4":    one,
		"rediss://:geheim@h":                         one,
		"redis://anna:123#geheim@10.0.0.1:6380":      form, // a host anna, whose port is the password's beginning
		"redis://geheim/x@10.0.0.1:6380":             form,
		"redis://geheim?x@10.0.0.1:6380":             form,
		"redis://anna:gehe im@10.0.0.1:6380":         form,
		"redis://anna:geheim@10.0.0.1:port":          form,
		"https://anna:geheim@10.0.0.1":               form,
		"anna:geheim@10.0.0.1":                       form,
		"redis://anna:geheim@10.0.0.1/0?geheim=true": form,

		"redis://anna:geheim@10.0.0.1:6380?addr=10.0.0.2:6380&addr=[::1]:6379": cluster,
		"rediss://anna:geheim@10.0.0.1?addr=10.0.0.1:6379":                     cluster,
		"redis://10.0.0.1/0?addr=10.0.0.1:6379&pool_size=7":                    cluster,
		"redis://10.0.0.1?addr=10.0.0.1:6379&db=0":                             cluster,
		"redis://10.0.0.1/1?addr=10.0.0.1:6379":                                database,
		"redis://10.0.0.1?addr=10.0.0.1:6379&db=1":                             database,
		"redis://10.0.0.1/x?addr=10.0.0.1:6379":                                database,
		"redis://10.0.0.1:6379,10.0.0.2:6379":                                  form,
		"redis://10.0.0.1?addr=":                                               form,
		"redis://10.0.0.1?addr=10.0.0.1":                                       form,
		"redis://10.0.0.1?addr=10.0.0.1:6379&geheim=1":                         form,
		"unix:///run/redis.sock?addr=10.0.0.1:6379":                            form,
		"redis://10.0.0.1?addr=10.0.0.1:6379&read_only=true":                   replicas,
		"redis://10.0.0.1?addr=10.0.0.1:6379&route_by_latency=true":            replicas,
		"redis://10.0.0.1?addr=10.0.0.1:6379&route_randomly=true":              replicas,

		"redis://anna:geheim@10.0.0.1:26379/3?master_name=hauptserver&addr=10.0.0.2:26379&username=anna&password=geheim": sentinel,
		"rediss://10.0.0.1?master_name=hauptserver":                                sentinel,
		"redis://10.0.0.1?master_name=":                                            form,
		"redis://10.0.0.1?master_name=hauptserver&password=gehe@im":                form,
		"redis://10.0.0.1/a/b?master_name=hauptserver":                             form,
		"unix:///run/redis.sock?master_name=hauptserver":                           form,
		"redis://10.0.0.1?master_name=hauptserver&replica_only=true":               replicas,
		"redis://10.0.0.1?master_name=hauptserver&route_by_latency=true":           replicas,
		"redis://10.0.0.1?master_name=hauptserver&route_randomly=true":             replicas,
		"redis://10.0.0.1?master_name=hauptserver&use_disconnected_replicas=true":  replicas,
		"redis://10.0.0.1?master_name=hauptserver&addr=10.0.0.2&password=geheim":   form,
		"redis://10.0.0.1?master_name=hauptserver&db=geheim":                       form,
		"redis://10.0.0.1?master_name=hauptserver&read_timeout=geheim&password=x1": form,
	} {
		client, err := open(t, text, redisurl.Config{Timeout: time.Second})
		got := ""
		switch c := client.(type) {
		case *redis.ClusterClient:
			got = cluster
		case *redis.Client:
			got = one
			if c.Options().Addr == "FailoverClient" {
				got = sentinel
			}
		}
		if err == nil && got != want || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %s, %v, not %s", text, got, err, want)
		}
	}
}

// What the URL says is used, and else nothing is repeated, and nothing takes longer than the Timeout.
func TestOptions(t *testing.T) {
	const own = "dial_timeout=3s&read_timeout=4s&write_timeout=5s&max_retries=2"
	for query, want := range map[string][]time.Duration{"x=": nil, own: {3 * time.Second, 4 * time.Second, 5 * time.Second}} {
		query = strings.TrimPrefix(query, "x=")
		for _, kind := range []string{"", "addr=b:1&addr=c:1&", "master_name=m&username=u&"} {
			client, err := open(t, "redis://u@a:1?"+kind+query, redisurl.Config{Timeout: time.Second})
			if err != nil {
				t.Fatal(err)
			}
			var times []time.Duration
			var retries int
			var heeds bool
			var user string
			switch c := client.(type) {
			case *redis.ClusterClient:
				o := c.Options()
				times = []time.Duration{o.DialTimeout, o.ReadTimeout, o.WriteTimeout}
				retries, heeds, user = o.MaxRetries, o.ContextTimeoutEnabled, o.Username
				if !slices.Equal(o.Addrs, []string{"a:1", "b:1", "c:1"}) {
					t.Error(o.Addrs)
				}
			case *redis.Client:
				o := c.Options()
				times = []time.Duration{o.DialTimeout, o.ReadTimeout, o.WriteTimeout}
				retries, heeds, user = o.MaxRetries, o.ContextTimeoutEnabled, o.Username
			}
			if want == nil && (!slices.Equal(times, []time.Duration{time.Second, time.Second, time.Second}) || retries > 0) {
				t.Error(kind, times, retries)
			}
			if want != nil && (!slices.Equal(times, want) || retries < 1) {
				t.Error(kind, times, retries)
			}
			if !heeds || user != "u" {
				t.Error(kind, heeds, user)
			}
		}
	}
}

// A password is in the URL or in a file, which is read anew each time. Sentinel's own is in the URL.
func TestPasswordFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "anna")
	c := redisurl.Config{PasswordFile: name, Timeout: time.Second}
	for _, text := range []string{"redis://anna:geheim@h", "redis://anna:geheim@h?addr=h:1", "redis://h?master_name=m&password=geheim"} {
		if _, err := open(t, text, c); err == nil || !strings.Contains(err.Error(), "in the URL, and a file") {
			t.Errorf("%s: %v", text, err)
		}
	}
	for _, text := range []string{"redis://anna@h", "redis://anna@h?addr=h:1", "redis://u:p@h?master_name=m&username=anna"} {
		_ = os.Remove(name)
		client, err := open(t, text, c)
		if err != nil {
			t.Fatal(err)
		}
		credentials := provider(client)
		_, _, err = credentials(t.Context())
		if err == nil || strings.Contains(err.Error(), "anna") {
			t.Error(err)
		}
		for _, password := range []string{"one", "two"} {
			if err := os.WriteFile(name, []byte(password+"\r\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			if user, got, err := credentials(t.Context()); user != "anna" || got != password || err != nil {
				t.Error(text, user, got, err)
			}
		}
		if err := os.WriteFile(name, []byte("\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, _, err := credentials(t.Context()); err == nil {
			t.Error("an empty file has a password")
		}
	}
}

func provider(client redis.UniversalClient) func(context.Context) (string, string, error) {
	if c, ok := client.(*redis.ClusterClient); ok {
		return c.Options().CredentialsProviderContext
	}
	return client.(*redis.Client).Options().CredentialsProviderContext
}
