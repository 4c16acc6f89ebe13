package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"
)

// The containers mount files that exist, and Prometheus asks the servers that there are.
func TestCompose(t *testing.T) {
	var compose struct {
		Services map[string]struct {
			Command string
			Volumes []string
			Depends []string `yaml:"depends_on"`
		}
	}
	var prometheus struct {
		Scrapes []struct {
			Static []struct{ Targets []string } `yaml:"static_configs"`
		} `yaml:"scrape_configs"`
	}
	for name, v := range map[string]any{"compose.yaml": &compose, "prometheus.yml": &prometheus} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := yaml.Unmarshal(text, v); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	if len(compose.Services) != 5 {
		t.Errorf("%d services", len(compose.Services))
	}
	for name, s := range compose.Services {
		for _, volume := range s.Volumes {
			path, _, _ := strings.Cut(volume, ":")
			if _, err := os.Stat(path); strings.HasPrefix(path, ".") && err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		for _, other := range s.Depends {
			if _, ok := compose.Services[other]; !ok {
				t.Errorf("%s depends on %s", name, other)
			}
		}
		if _, folder, ok := strings.Cut(s.Command, "./"); ok {
			folder, _, _ = strings.Cut(folder, " ")
			if _, err := os.Stat(filepath.Join("../..", folder, "main.go")); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	for _, scrape := range prometheus.Scrapes {
		for _, target := range scrape.Static[0].Targets {
			host, port, _ := strings.Cut(target, ":")
			if s, ok := compose.Services[host]; !ok || !strings.Contains(s.Command, "-addr :"+port) {
				t.Errorf("nothing listens on %s", target)
			}
		}
	}
}
