// Package page is the page of package stats.
package page

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"os"
	"path"
	"runtime/debug"
	"strings"

	"github.com/headgate/headgate/core/stats/internal/counts"
	"github.com/headgate/headgate/internal/backend"
)

// Config is the configuration of a [Handler]. Its zero value is ready to use.
type Config struct {
	// Limits, if not nil, returns the limits that are in force, to be shown beside the counts. It
	// is called for each request, by many goroutines.
	Limits func() backend.Limits
}

// Handler returns a handler for a path that ends in a slash. Below it are:
//
//	           a page for people; with ?refresh=5, one that loads itself again each 5 seconds
//	json       a Report
//	metrics    text for Prometheus
//
// It answers GET and HEAD, and is safe for concurrent use.
func Handler(s *counts.Stats, c Config) http.Handler {
	h := &handler{stats: s, config: c, process: newProcess()}
	return http.HandlerFunc(h.serve)
}

// A Report is what the handler serves as JSON.
type Report struct {
	counts.Snapshot

	Process Process         `json:"process"`
	Limits  *ReportedLimits `json:"limits,omitempty"` // with Config.Limits
}

// Process tells which process a [Report] is of. Unknown fields are empty.
type Process struct {
	Host     string `json:"host"`
	ID       int    `json:"id"`
	Program  string `json:"program"`            // path of the main package
	Version  string `json:"version,omitempty"`  // of its module, or the revision it was built from
	Headgate string `json:"headgate,omitempty"` // version of this module
}

func newProcess() Process {
	p := Process{ID: os.Getpid()}
	p.Host, _ = os.Hostname()
	b, ok := debug.ReadBuildInfo()
	if !ok {
		return p
	}
	p.Program, p.Version = b.Path, b.Main.Version
	for _, s := range b.Settings {
		if s.Key == "vcs.revision" && (p.Version == "" || p.Version == "(devel)") {
			p.Version = s.Value
		}
	}
	for _, m := range b.Deps {
		if m.Path == "github.com/headgate/headgate" {
			p.Headgate = m.Version
		}
	}
	return p
}

// ReportedLimits are the [Limits] of a [Report].
type ReportedLimits struct {
	Version  string            `json:"version"`
	Error    string            `json:"error,omitempty"` // why a newer configuration is not in force
	Limiters []ReportedLimiter `json:"limiters"`
}

// ReportedLimiter is a limiter of the [Limits].
type ReportedLimiter struct {
	Name     string           `json:"name"`
	Policies []ReportedPolicy `json:"policies"`
}

// ReportedPolicy is a policy of a limiter, as a text of [core.Policy].
type ReportedPolicy struct {
	Name   string `json:"name"`
	Policy string `json:"policy"`
}

type handler struct {
	stats   *counts.Stats
	config  Config
	process Process
	rates   rates
}

func (h *handler) report() Report {
	r := Report{Snapshot: h.stats.Snapshot(), Process: h.process}
	if h.config.Limits == nil {
		return r
	}
	limits := h.config.Limits()
	r.Limits = &ReportedLimits{Version: limits.Version, Limiters: []ReportedLimiter{}}
	if limits.Err != nil {
		r.Limits.Error = limits.Err.Error()
	}
	for _, l := range limits.Limiters {
		x := ReportedLimiter{Name: l.Name}
		for i := range l.Policies {
			p := &l.Policies[i]
			x.Policies = append(x.Policies, ReportedPolicy{p.Name, p.Numbers.String()})
		}
		r.Limits.Limiters = append(r.Limits.Limiters, x)
	}
	return r
}

func (h *handler) serve(w http.ResponseWriter, r *http.Request) {
	head := w.Header()
	head.Set("Cache-Control", "no-store")
	head.Set("X-Content-Type-Options", "nosniff")
	head.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	if r.Method != "GET" && r.Method != "HEAD" {
		head.Set("Allow", "GET, HEAD")
		http.Error(w, "only GET and HEAD", http.StatusMethodNotAllowed)
		return
	}
	var body bytes.Buffer
	var err error
	switch {
	case strings.HasSuffix(r.URL.Path, "/"):
		head.Set("Content-Type", "text/html; charset=utf-8")
		head.Set("Content-Security-Policy", "default-src 'none'; img-src data:; style-src '"+styleHash()+
			"'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
		report := h.report()
		err = writePage(&body, report, h.rates.since(&report.Snapshot), r.URL.Query().Get("refresh"))
	case path.Base(r.URL.Path) == "json":
		head.Set("Content-Type", "application/json")
		e := json.NewEncoder(&body)
		e.SetIndent("", "\t")
		err = e.Encode(h.report())
	case path.Base(r.URL.Path) == "metrics":
		head.Set("Content-Type", counts.ContentType)
		err = h.stats.WritePrometheus(&body)
	default:
		http.NotFound(w, r)
		return
	}
	if err != nil {
		http.Error(w, "the page cannot be made", http.StatusInternalServerError)
		return
	}
	_, _ = body.WriteTo(w) // who does not read it has gone
}

// style is that of the page.
//
//go:embed page.css
var style string

func styleHash() string {
	sum := sha256.Sum256([]byte(style))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}
