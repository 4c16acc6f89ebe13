// Package stats counts what limiters and slots do, and who is refused, for metrics, logs and
// the pages of package debug. It needs only the standard library.
//
//	seen, err := stats.New(stats.Config{Logger: slog.Default()})
//	store := memstore.New(memstore.Config{Observer: seen.Observer()})
//
// What it counts can be read as a [Snapshot], as text for Prometheus
// ([Stats.WritePrometheus]), as a variable of package expvar, since a Stats is one, or with
// OpenTelemetry, by module otelheadgate.
//
// # Cost
//
// An admitted charge costs two look-ups and an atomic addition, and never a lock or an
// allocation. Refusals cost more, because the keys of refused charges are counted.
//
// # Bounds
//
// Series are made for names, never for keys: of 1,024 limiters, 1,024 slots, and 16 policies
// of each limiter. What has other names is counted together, under [Others]. Each limiter
// that has refused takes up to 50 KiB for the keys that it refuses most.
//
// # Keys
//
// No metric, log record or error contains a key. The list of the keys that are refused most
// shows, for each, the beginning of its HMAC-SHA-256 under [Config].Secret: who has the
// secret and a suspect can compare the two with [Hash]. Only with [Config].ShowKeys does it
// show keys.
package stats
