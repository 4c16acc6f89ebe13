package redisurl_test

import (
	"strings"
	"testing"

	"github.com/headgate/headgate/internal/redisurl"
)

func TestParse(t *testing.T) {
	for text, ok := range map[string]bool{
		"redis://anna:p%2Fss@10.0.0.1:6380/3":        true,
		"redis://anna:p@ss@10.0.0.1:6380/3":          true,
		"unix://anna:geheim@/run/redis.sock?db=4":    true,
		"rediss://:geheim@h":                         true,
		"redis://anna:123#geheim@10.0.0.1:6380":      false, // a host anna, whose port is the password's beginning
		"redis://geheim/x@10.0.0.1:6380":             false,
		"redis://geheim?x@10.0.0.1:6380":             false,
		"redis://anna:gehe im@10.0.0.1:6380":         false,
		"redis://anna:geheim@10.0.0.1:port":          false,
		"https://anna:geheim@10.0.0.1":               false,
		"anna:geheim@10.0.0.1":                       false,
		"redis://anna:geheim@10.0.0.1/0?geheim=true": false,
	} {
		o, err := redisurl.Parse(text)
		if (err == nil) != ok || ok == (o == nil) {
			t.Errorf("%s: %v", text, err)
		}
		if err != nil && (strings.Contains(err.Error(), "geheim") || strings.Contains(err.Error(), "anna")) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
