package stats

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

	"github.com/headgate/headgate/internal/backend"
)

// Handler returns the page for operators. Mount it at a path that ends in a slash, where only operators get: below it
// are "metrics", the text for Prometheus, and "json", the counts. It answers GET and HEAD.
func (s *Stats) Handler() http.Handler { return s.HandlerWith(nil) }

// HandlerWith is Handler with the limits that are in force. It is for headgated.
func (s *Stats) HandlerWith(limits func() backend.Limits) http.Handler {
	return &handler{stats: s, limits: limits, process: thisProcess()}
}

// A report is what the handler serves as JSON.
type report struct {
	snapshot

	Process process         `json:"process"`
	Limits  *backend.Limits `json:"limits,omitempty"` // that are in force, of headgated
	Error   string          `json:"error,omitempty"`  // why newer ones are not
}

// A process is one that counts. Unknown fields are empty.
type process struct {
	Host     string `json:"host"`
	ID       int    `json:"id"`
	Program  string `json:"program"`            // path of the main package
	Version  string `json:"version,omitempty"`  // of its module
	Headgate string `json:"headgate,omitempty"` // version of this module
}

// thisProcess returns what is known of this process.
func thisProcess() process {
	p := process{ID: os.Getpid()}
	p.Host, _ = os.Hostname()
	// A program that is built without modules has none. In the tests of this module headgate is the main module, and no
	// dependency.
	if b, ok := debug.ReadBuildInfo(); ok {
		p.Program = b.Path
		p.Version = b.Main.Version
		for _, m := range b.Deps {
			if m.Path == "github.com/headgate/headgate" {
				p.Headgate = m.Version
			}
		}
	}
	return p
}

// A handler serves the page and what is below it.
type handler struct {
	stats   *Stats
	limits  func() backend.Limits // or nil
	process process
	rates   rates
}

// report returns the counts with what they are of.
func (h *handler) report() *report {
	r := &report{snapshot: h.stats.snapshot(true), Process: h.process}
	// A program shows what its limits decide; only headgated has them all.
	if h.limits != nil {
		limits := h.limits()
		r.Limits = &limits
		if limits.Err != nil {
			r.Error = limits.Err.Error()
		}
	}
	return r
}

// ServeHTTP implements [http.Handler].
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// The strict headers are those of all answers, also of errors. The page has no script, and names of limiters may
	// come from a document that others write: so its policy permits nothing but the one style and the empty icon.
	head := w.Header()
	head.Set("Cache-Control", "no-store")
	head.Set("X-Content-Type-Options", "nosniff")
	head.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	// The page reads only. What it shows may be of the last second, so nobody is to keep it.
	if r.Method != "GET" && r.Method != "HEAD" {
		head.Set("Allow", "GET, HEAD")
		http.Error(w, "only GET and HEAD", http.StatusMethodNotAllowed)
		return
	}
	// The answer is made before anything is written, so that a failure can have a status.
	var body bytes.Buffer
	var err error
	switch {
	// Only the end of the path counts, as the handler does not know where it is mounted, nor whether a prefix was
	// stripped.
	case strings.HasSuffix(r.URL.Path, "/"):
		head.Set("Content-Type", "text/html; charset=utf-8")
		head.Set("Content-Security-Policy", "default-src 'none'; img-src data:; style-src '"+styleHash()+
			"'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
		err = page.Execute(&body, h.view(r.URL.Query().Get("refresh")))
	case path.Base(r.URL.Path) == "json":
		head.Set("Content-Type", "application/json")
		encoder := json.NewEncoder(&body)
		encoder.SetIndent("", "\t")
		err = encoder.Encode(h.report())
	case path.Base(r.URL.Path) == "metrics":
		head.Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
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

// styleHash returns the hash of the style, by which the policy of the page permits it, and no other.
func styleHash() string {
	sum := sha256.Sum256([]byte(style))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}
