package headgated

import (
	"errors"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/headgate/headgate/core/stats"
	"github.com/headgate/headgate/internal/backend"
)

// Admin returns the handler of the admin door:
//
//	/healthz           200 while the process answers
//	/readyz            200 from the first document until the server stops, then 503
//	/metrics           for Prometheus
//	/debug/headgate/   what limits do, as package stats shows it
//
// A Redis that is away changes neither of the first two: the server goes on by its [Config].Failure.
func (s *Server) Admin() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if s.draining.Load() {
			answer(w, http.StatusServiceUnavailable, "the server stops")
			return
		}
		answer(w, http.StatusOK, "ready")
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.metrics.registry, promhttp.HandlerOpts{}))
	mux.Handle("GET /debug/headgate/", s.stats.HandlerWith(s.shown))
	return mux
}

func answer(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text + "\n"))
}

// shown returns what the debug page shows.
func (s *Server) shown() backend.Limits {
	c := s.current.Load()
	l := backend.Limits{Version: c.version, Err: errors.Join(s.faultOf(ofDocument), s.faultOf(ofCertificates))}
	for _, name := range slices.Sorted(maps.Keys(c.limits.Limits)) {
		plans := c.limits.Limits[name].Plans
		for _, plan := range slices.Sorted(maps.Keys(plans)) {
			for _, p := range plans[plan].Prepared().List {
				l.Policies = append(l.Policies, backend.ShownPolicy{Limiter: name, Name: p.Name, Text: p.Numbers.String()})
			}
		}
	}
	return l
}

const labelPath = "path"

// metrics are those of the service, beside what package stats counts.
type metrics struct {
	registry  *prometheus.Registry
	requests  *prometheus.CounterVec
	durations *prometheus.HistogramVec
	reloads   *prometheus.CounterVec
	failing   *prometheus.GaugeVec
	document  *prometheus.GaugeVec
	unmatched prometheus.Counter
	untrusted prometheus.Counter
	rls       *rlsMetrics
}

func newMetrics(seen *stats.Stats) *metrics {
	counter := func(name, help string) prometheus.CounterOpts { return prometheus.CounterOpts{Name: name, Help: help} }
	gauge := func(name, help string) prometheus.GaugeOpts { return prometheus.GaugeOpts{Name: name, Help: help} }
	m := &metrics{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(counter("headgated_requests_total", "Requests by path and status."), []string{labelPath, "code"}),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "headgated_request_duration_seconds", Help: "How long requests took.",
			Buckets: []float64{0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25},
		}, []string{labelPath}),
		reloads: prometheus.NewCounterVec(counter("headgated_reload_failures_total", "How often the document or the certificates were read and do not apply."),
			[]string{"what"}),
		failing: prometheus.NewGaugeVec(gauge("headgated_reload_failing", "1 while the document or the certificates that were read last do not apply."),
			[]string{"what"}),
		document:  prometheus.NewGaugeVec(gauge("headgated_document_applied_timestamp_seconds", "Since when the document in force applies."), []string{"version"}),
		unmatched: prometheus.NewCounter(counter("headgated_auth_unmatched_total", "Requests of /v1/auth that no route is for: they were admitted.")),
		untrusted: prometheus.NewCounter(counter("headgated_auth_untrusted_total", "Requests of /v1/auth by peers whose X-Forwarded fields were not read.")),
	}
	m.registry.MustRegister(collector{seen}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		m.requests, m.durations, m.reloads, m.failing, m.document, m.unmatched, m.untrusted)
	m.rls = newRLSMetrics(m.registry)
	for _, what := range whats {
		m.reloads.WithLabelValues(what)
		m.failing.WithLabelValues(what)
	}
	return m
}

// applied notes the document that is in force from now on.
func (m *metrics) applied(version string) {
	m.document.Reset()
	m.document.WithLabelValues(version).SetToCurrentTime()
	m.rls.applied.Inc()
}

// reloaded notes whether something that was read does not apply, and whether that is news.
func (m *metrics) reloaded(what string, fails, news bool) {
	failing := 0.0
	if fails {
		failing = 1
	}
	if news {
		m.reloads.WithLabelValues(what).Inc()
		if what == whats[ofDocument] {
			m.rls.failed.Inc()
		}
	}
	m.failing.WithLabelValues(what).Set(failing)
}

// counted counts the requests of a path.
func (m *metrics) counted(path string, h http.Handler) http.Handler {
	duration := m.durations.WithLabelValues(path)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		begin, status := time.Now(), &statusWriter{ResponseWriter: w, status: http.StatusOK}
		defer func() {
			m.requests.WithLabelValues(path, strconv.Itoa(status.status)).Inc()
			duration.Observe(time.Since(begin).Seconds())
		}()
		h.ServeHTTP(status, r)
	})
}

// A statusWriter remembers the status.
type statusWriter struct {
	http.ResponseWriter

	status int
}

// WriteHeader implements [http.ResponseWriter].
func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap is for [http.ResponseController].
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
