// Package stats counts what limiters and slots do, and who is refused, for metrics, logs and
// the pages of package debug. It needs only the standard library.
//
//	seen, err := stats.New(stats.Config{Logger: slog.Default()})
//	store := memstore.New(memstore.Config{Observer: seen.Observer()})
//
// Its counts can be read as a [Snapshot], or as text for Prometheus ([Stats.WritePrometheus]). A Stats
// is also a variable of package expvar. Modules promheadgate and otelheadgate report the counts with
// client_golang and OpenTelemetry.
//
// # Cost
//
// An admitted charge costs two look-ups and an atomic addition, and never a lock or an
// allocation. Refusals cost more, because the keys of refused charges are counted.
//
// # Bounds
//
// Series are made for names, never for keys: of 1,024 limiters, 1,024 slots, and 16 policies
// of each limiter. Further names are counted together, under [Others]. Each limiter
// that has refused takes up to 50 KiB for the keys that it refuses most.
//
// # Keys
//
// No metric, log record or error contains a key. The list of the most refused keys shows the
// beginning of each key's HMAC-SHA-256 under the secret of [Config]. With the secret, [Hash]
// computes it for a suspect. The list shows keys only with [Config].ShowKeys.
package stats
