package headgated

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// rlsMetrics are those of Envoy's rate limit service, by the names of its reference, so that boards which
// exist go on.
type rlsMetrics struct {
	total, over, within, near, shadowed *prometheus.CounterVec
	errors                              *prometheus.CounterVec
	unknownDomain                       prometheus.Counter
	applied, failed                     prometheus.Counter // configurations

	mu     sync.Mutex
	series map[[3]string]*limitMetrics
	free   int // how many of them have texts that are not of the configuration
}

// limitMetrics are those of one limit.
type limitMetrics struct{ total, over, within, near, shadowed prometheus.Counter }

// maxSeries bounds the series with texts of requests. The hits of more are those of the key other. Those of
// the configuration have a series always.
const maxSeries = 10_000

// maxLabel bounds a label, in bytes.
const maxLabel = 128

// label returns a text as a label. A long one is cut, and is told from others by its hash.
func label(text string) string {
	if len(text) <= maxLabel {
		return text
	}
	sum := sha256.Sum256([]byte(text))
	end := "..." + hex.EncodeToString(sum[:8])
	return strings.ToValidUTF8(text[:maxLabel-len(end)], "") + end
}

func newRLSMetrics(registry *prometheus.Registry) *rlsMetrics {
	labels := []string{wordDomain, "key1", "key2"}
	limit := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "ratelimit_service_rate_limit_" + name, Help: help}, labels)
	}
	loaded := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "ratelimit_service_config_load_" + name, Help: help})
	}
	m := &rlsMetrics{
		total:    limit("total_hits", "Hits of a limit."),
		over:     limit("over_limit", "Hits beyond it."),
		within:   limit("within_limit", "Hits within it."),
		near:     limit("near_limit", "Hits within it, after which four fifths were used."),
		shadowed: limit("shadow_mode", "Hits beyond it that refused nothing, as the limit is in shadow mode."),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ratelimit_service_should_rate_limit_error", Help: "Requests without an answer.",
		}, []string{"err_type"}),
		unknownDomain: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "headgated_rls_unknown_domain_total", Help: "Requests for a domain that there is not: they were admitted.",
		}),
		applied: loaded("success", "Documents and configurations that were read and apply."),
		failed:  loaded("error", "Those that were read and do not apply."),
		series:  make(map[[3]string]*limitMetrics),
	}
	registry.MustRegister(m.total, m.over, m.within, m.near, m.shadowed, m.errors, m.unknownDomain, m.applied, m.failed)
	for _, kind := range []string{"service_error", "redis_error"} {
		m.errors.WithLabelValues(kind)
	}
	return m
}

// answered counts a request for which there is no answer.
func (m *rlsMetrics) answered(err error) {
	switch status.Code(err) {
	case codes.OK, codes.Canceled, codes.DeadlineExceeded:
	case codes.Unavailable:
		m.errors.WithLabelValues("redis_error").Inc()
	default:
		m.errors.WithLabelValues("service_error").Inc()
	}
}

// hits counts the hits of an item.
func (m *rlsMetrics) hits(domain string, it *item) {
	if it.limiter == nil {
		return
	}
	labels := [3]string{domain, "", ""}
	if len(it.keys) > 0 {
		labels[1], labels[2] = label(it.keys[0]), label(strings.Join(it.keys[1:], "."))
	}
	of, n := m.of(labels, it.free), float64(it.hits)
	of.total.Add(n)
	switch {
	case it.over:
		of.over.Add(n)
		if it.shadow {
			of.shadowed.Add(n)
		}
	default:
		of.within.Add(n)
		if l := it.status.GetCurrentLimit(); it.charged && l != nil && it.status.GetLimitRemaining() <= l.GetRequestsPerUnit()/5 {
			of.near.Add(n)
		}
	}
}

// of returns the metrics with these labels, or if they have texts of requests, of which there are too many, those of
// the key other.
func (m *rlsMetrics) of(labels [3]string, free bool) *limitMetrics {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.series[labels] == nil && free {
		if m.free == maxSeries {
			labels[1], labels[2] = "other", ""
		} else {
			m.free++
		}
	}
	of := m.series[labels]
	if of == nil {
		with := func(v *prometheus.CounterVec) prometheus.Counter { return v.WithLabelValues(labels[:]...) }
		of = &limitMetrics{with(m.total), with(m.over), with(m.within), with(m.near), with(m.shadowed)}
		m.series[labels] = of
	}
	return of
}
