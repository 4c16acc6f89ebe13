package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/stats"
	"github.com/headgate/headgate/internal/exampletest"
	"github.com/headgate/headgate/internal/redistest/proctest"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

// program returns the path of a program of Prometheus, or ends the test.
func program(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		if os.Getenv("HEADGATE_REQUIRE") == "1" {
			t.Fatalf("%s is not installed; HEADGATE_REQUIRE=1 forbids to skip this test", name)
		}
		t.Skipf("%s is not installed: apt-get install prometheus", name)
	}
	return path
}

// board is what the test reads of board.json.
type board struct {
	Panels []struct {
		Type, Title string
		Targets     []struct{ Expr string }
		FieldConfig struct {
			Defaults struct {
				Color      struct{ Mode string }
				Thresholds struct {
					Steps []struct {
						Color string
						Value *float64
					}
				}
			}
			Overrides []struct {
				Matcher    struct{ ID, Options string }
				Properties []struct {
					ID    string
					Value struct{ Mode, FixedColor string }
				}
			}
		}
	}
}

func readBoard(t *testing.T) (b board) {
	t.Helper()
	text, err := os.ReadFile("board.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &b); err != nil {
		t.Fatal(err)
	}
	return b
}

// expressions returns those of the board, by panel, with Grafana's variables replaced.
func expressions(t *testing.T) map[string]string {
	t.Helper()
	b := readBoard(t)
	all := make(map[string]string)
	for _, p := range b.Panels {
		for i, target := range p.Targets {
			e := strings.NewReplacer("$__rate_interval", "10s", "$job", ".*", "$limiter", ".*").Replace(target.Expr)
			all[fmt.Sprintf("%s %d", p.Title, i+1)] = e
		}
	}
	return all
}

// TestColours: what is calm is green and what is trouble red, also where Grafana would choose.
func TestColours(t *testing.T) {
	calm := map[string]float64{"Since the last refusal": 3600, "Servers away": 0, "Faults in the last hour": 0}
	trouble := map[string]float64{"Since the last refusal": 1, "Servers away": 1, "Faults in the last hour": 1}
	for _, p := range readBoard(t).Panels {
		colour := func(value float64) (is string) {
			for _, step := range p.FieldConfig.Defaults.Thresholds.Steps {
				if step.Value == nil || value >= *step.Value {
					is = step.Color
				}
			}
			return is
		}
		if _, known := calm[p.Title]; p.Type == "stat" && (!known || p.FieldConfig.Defaults.Color.Mode != "thresholds" ||
			colour(calm[p.Title]) != "green" || colour(trouble[p.Title]) != "red") {
			t.Errorf("%s: calm is %q, trouble is %q", p.Title, colour(calm[p.Title]), colour(trouble[p.Title]))
		}
		shows := func(label string) bool {
			return len(p.Targets) == 1 && strings.Contains(p.Targets[0].Expr, "by ("+label) && strings.Contains(p.Targets[0].Expr, "_total{")
		}
		if !shows("result") && !shows("slots, result") {
			continue
		}
		fixed := make(map[string]string)
		for _, o := range p.FieldConfig.Overrides {
			for _, property := range o.Properties {
				if o.Matcher.ID == "byRegexp" && property.ID == "color" && property.Value.Mode == "fixed" {
					fixed[o.Matcher.Options] = property.Value.FixedColor
				}
			}
		}
		if fixed["/(^| )admitted$/"] != "green" || fixed["/(^| )refused$/"] != "red" || fixed["/(^| )trial$/"] != "blue" {
			t.Errorf("%s: %v", p.Title, fixed)
		}
	}
}

// TestMetricsExist: the board and the alerts ask for metrics that are exported.
func TestMetricsExist(t *testing.T) {
	seen := stats.New(stats.Config{})
	store := &core.MemoryStore{Observers: []*core.Observer{seen.Observer()}}
	if _, err := core.NewLimiter(store, "api", core.Unlimited()).Allow(t.Context(), "anna"); err != nil { // from here on it is counted
		t.Fatal(err)
	}
	exported := make(map[string]bool)
	for _, f := range seen.Families() {
		exported[f.Name] = true
		if f.Type == "histogram" {
			exported[f.Name+"_bucket"], exported[f.Name+"_count"], exported[f.Name+"_sum"] = true, true, true
		}
	}
	asked := regexp.MustCompile(`headgate_[a-z_]+`)
	for _, file := range []string{"board.json", "alerts.yml"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		names := asked.FindAllString(string(text), -1)
		if len(names) == 0 {
			t.Errorf("%s asks for nothing", file)
		}
		for _, name := range names {
			if !exported[name] {
				t.Errorf("%s: %s is not exported", file, name)
			}
		}
	}
}

// TestBoard evaluates every expression of the board against what the program does.
func TestBoard(t *testing.T) {
	if testing.Short() {
		t.Skip("takes ten seconds")
	}
	prometheus := program(t, "prometheus")
	s := exampletest.Start(t)
	if r, body := s.Do("GET", "/"); r.StatusCode != 200 || !strings.Contains(body, "<h1>headgate</h1>") {
		t.Errorf("%s: %s", r.Status, body)
	}
	server := scrape(t, prometheus, s.URL)
	left := expressions(t)
	if len(left) < 15 {
		t.Fatalf("only %d expressions", len(left))
	}
	patience, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for len(left) > 0 {
		for panel, e := range left {
			switch n, err := query(t, server, e); {
			case err != nil:
				t.Fatalf("%s: %s: %v", panel, e, err)
			case n > 0:
				delete(left, panel)
			}
		}
		select {
		case <-patience.Done():
			t.Fatalf("no data for %v", left)
		case <-time.After(200 * time.Millisecond): // there is no event to wait for: a scrape comes
		}
	}
	s.Stop()
}

// scrape starts a Prometheus that scrapes the server, and returns its address.
func scrape(t *testing.T, prometheus, target string) string {
	t.Helper()
	dir := t.TempDir()
	config := filepath.Join(dir, "prometheus.yml")
	text := fmt.Sprintf(`{scrape_configs: [{job_name: headgate, scrape_interval: 1s, metrics_path: /debug/headgate/metrics, static_configs: [{targets: [%q]}]}]}`,
		strings.TrimPrefix(target, "http://"))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), prometheus, "--config.file", config,
		"--storage.tsdb.path", filepath.Join(dir, "data"), "--web.listen-address", "127.0.0.1:0")
	log, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	proctest.StartCommand(t, cmd)
	var said strings.Builder
	for lines := bufio.NewScanner(log); lines.Scan(); {
		fmt.Fprintln(&said, lines.Text())
		if _, address, found := strings.Cut(lines.Text(), `msg="Listening on" address=`); found {
			address, _, _ = strings.Cut(address, " ")
			go func() { _, _ = io.Copy(io.Discard, log) }() // or it blocks when it writes
			return "http://" + address
		}
	}
	t.Fatalf("it does not listen:\n%s", &said)
	return ""
}

// query returns the number of series of an expression that have a value, or 0 while the server
// starts.
func query(t *testing.T, server, expression string) (int, error) {
	t.Helper()
	r, err := http.Get(server + "/api/v1/query?query=" + url.QueryEscape(expression))
	if err != nil {
		return 0, nil // it is starting
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return 0, err
	}
	var answer struct {
		Status, Error string
		Data          struct{ Result []struct{ Value [2]any } }
	}
	if r.StatusCode == http.StatusServiceUnavailable {
		return 0, nil
	}
	if err := json.Unmarshal(body, &answer); err != nil || answer.Status != "success" {
		return 0, fmt.Errorf("%w %s %s", err, r.Status, body)
	}
	n := 0
	for _, series := range answer.Data.Result {
		if series.Value[1] != "NaN" {
			n++
		}
	}
	return n, nil
}

// TestConfigurations are accepted by Prometheus, with the alerts.
func TestConfigurations(t *testing.T) {
	promtool := program(t, "promtool")
	for _, args := range [][]string{{"check", "config", "prometheus.yml"}, {"check", "rules", "alerts.yml"}, {"test", "rules", "alerts_test.yml"}} {
		if out, err := exec.CommandContext(t.Context(), promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}
}

func TestAWrongURLIsNotRepeated(t *testing.T) {
	if _, _, err := connect("redis://:geheim@localhost:port"); err == nil || strings.Contains(err.Error(), "geheim") {
		t.Errorf("%v", err)
	}
}
