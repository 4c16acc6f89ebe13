package e2e

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

//go:embed board.html
var boardPage string

// TestBoard draws the board of the example with the answers of a Prometheus. Every expression
// has some, every panel shows them, and the browser has nothing to complain of.
func TestBoard(t *testing.T) {
	ctx := browser(t)
	text, err := os.ReadFile("../../examples/observability/board.json")
	if err != nil {
		t.Fatal(err)
	}
	b := board{Left: left}
	if err := json.Unmarshal(text, &b); err != nil {
		t.Fatal(err)
	}
	seconds := 20
	if *screenshots != "" {
		seconds = 120 // in which Redis goes away several times
	}
	prometheus := scrape(t, start(t, "observability"))
	var end time.Time
	// Rates need a while, and whoever guesses passwords is refused only then.
	warm := time.Now().Add(time.Duration(seconds+15) * time.Second)
	for missing := "everything"; missing != "" || end.Before(warm); {
		select {
		case <-ctx.Done():
			t.Fatalf("no data for %s", missing)
		case <-time.After(time.Second): // there is no event to wait for: a scrape comes
		}
		end = time.Now()
		missing = b.ask(t, prometheus, end, seconds)
	}
	b.From, b.To = end.Add(-time.Duration(seconds)*time.Second).UTC().Format(time.DateTime), end.UTC().Format(time.TimeOnly)
	b.draw(t, end)
	var page bytes.Buffer
	if err := template.Must(template.New("").Parse(boardPage)).Execute(&page, b); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(page.Bytes()) // the browser may leave before it has read all, as for its icon
	}))
	defer server.Close()

	var mu sync.Mutex
	var complaints []string
	chromedp.ListenTarget(ctx, func(event any) {
		mu.Lock()
		defer mu.Unlock()
		switch e := event.(type) {
		case *runtime.EventExceptionThrown:
			complaints = append(complaints, e.ExceptionDetails.Error())
		case *log.EventEntryAdded:
			complaints = append(complaints, e.Entry.Text)
		}
	})
	const panels = `[...document.querySelectorAll("section")]`
	for scheme, colour := range map[string]string{"light": "rgb(245, 246, 248)", "dark": "rgb(16, 20, 27)"} {
		var empty, cut []string
		var background string
		run(ctx, t,
			look(1184, 800, false, scheme),
			chromedp.Navigate(server.URL),
			chromedp.Evaluate(panels+`.filter(s => ![...s.querySelectorAll(".drawn")].some(d => d.getBBox().width > 0)).map(s => s.firstChild.textContent)`, &empty),
			chromedp.Evaluate(panels+`.filter(s => s.scrollWidth > s.clientWidth || s.scrollHeight > s.clientHeight ||
				[...s.children].some(c => c.scrollHeight > c.clientHeight)).map(s => s.firstChild.textContent)`, &cut),
			chromedp.Evaluate(`getComputedStyle(document.body).backgroundColor`, &background),
			picture("board-"+scheme),
		)
		if len(empty) > 0 || len(cut) > 0 {
			t.Errorf("these panels are empty: %q; and these are cut off: %q", empty, cut)
		}
		if background != colour {
			t.Errorf("%s: the page is %s", scheme, background)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if len(complaints) > 0 {
		t.Errorf("the browser says %q", complaints)
	}
}

// scrape starts a Prometheus that scrapes the example, and returns its address.
func scrape(t *testing.T, example string) string {
	t.Helper()
	dir := t.TempDir()
	config := filepath.Join(dir, "prometheus.yml")
	text := fmt.Sprintf(`{scrape_configs: [{job_name: headgate, scrape_interval: 1s, metrics_path: /debug/headgate/metrics, static_configs: [{targets: [%q]}]}]}`,
		strings.Trim(strings.TrimPrefix(example, "http:"), "/"))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("prometheus", "--config.file", config, "--storage.tsdb.path", filepath.Join(dir, "data"), "--web.listen-address", "127.0.0.1:0")
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	address, _, _ := strings.Cut(launch(t, cmd, stderr, `msg="Listening on" address=`), " ")
	return "http://" + address
}

// ask fetches the answers to all expressions in the seconds until an instant, and returns one
// that has too few, if there is.
func (b *board) ask(t *testing.T, prometheus string, end time.Time, seconds int) (missing string) {
	t.Helper()
	for _, p := range b.Panels {
		p.Series = nil
		for _, target := range p.Targets {
			expression := strings.NewReplacer("$__rate_interval", "10s", "$job", ".*", "$limiter", ".*").Replace(target.Expr)
			r, err := http.PostForm(prometheus+"/api/v1/query_range", url.Values{
				"query": {expression}, "step": {"1"},
				"start": {strconv.FormatInt(end.Unix()-int64(seconds), 10)}, "end": {strconv.FormatInt(end.Unix(), 10)},
			})
			if err != nil {
				t.Fatal(err)
			}
			var answer struct {
				Error string
				Data  struct {
					Result []struct {
						Metric map[string]string
						Values [][2]any // a time, and a text
					}
				}
			}
			err = json.NewDecoder(r.Body).Decode(&answer)
			_ = r.Body.Close()
			if r.StatusCode == http.StatusServiceUnavailable { // it is starting
				return expression
			}
			if err != nil || answer.Error != "" {
				t.Fatalf("%s: %s: %s: %v", p.Title, expression, answer.Error, err)
			}
			most := 0
			for _, result := range answer.Data.Result {
				name := target.LegendFormat
				for label, value := range result.Metric {
					name = strings.ReplaceAll(name, "{{"+label+"}}", value)
				}
				s := &series{Name: name, Colour: len(p.Series) % 6, values: make([]float64, seconds+1)}
				for i := range s.values {
					s.values[i] = math.NaN()
				}
				n := 0
				for _, v := range result.Values {
					x, err := strconv.ParseFloat(fmt.Sprint(v[1]), 64)
					at, ok := v[0].(float64)
					if err != nil || !ok {
						t.Fatalf("%s: %v", expression, v)
					}
					if !math.IsNaN(x) && !math.IsInf(x, 0) {
						s.values[seconds-int(end.Unix()-int64(at))] = x
						n++
					}
				}
				most = max(most, n)
				if n > 0 {
					p.Series = append(p.Series, s)
				}
			}
			if most < 10 {
				missing = expression
			}
		}
	}
	return missing
}
