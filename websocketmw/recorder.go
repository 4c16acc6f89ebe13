package websocketmw

import (
	"bufio"
	"net"
	"net/http"

	"github.com/headgate/headgate/nethttp"
)

// A recorder records the response that is written through it.
type recorder struct {
	http.ResponseWriter

	status   int   // the final one; 0: not yet written
	written  int64 // bytes of the body
	hijacked bool
}

// writer returns the recorder, with Hijack only if the writer within can hijack:
// handlers check by type assertion.
func (rec *recorder) writer() http.ResponseWriter {
	if canHijack(rec.ResponseWriter) {
		return &hijackRecorder{rec}
	}
	return rec
}

// canHijack also looks inside, where http.ResponseController would find it.
func canHijack(w http.ResponseWriter) bool {
	for {
		if _, ok := w.(http.Hijacker); ok {
			return true
		}
		u, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			return false
		}
		w = u.Unwrap()
	}
}

// Unwrap is for [http.ResponseController].
func (rec *recorder) Unwrap() http.ResponseWriter { return rec.ResponseWriter }

func (rec *recorder) WriteHeader(status int) {
	informational := status >= 100 && status < 200 && status != http.StatusSwitchingProtocols
	if !informational {
		rec.final(status)
	}
	rec.ResponseWriter.WriteHeader(status)
}

func (rec *recorder) Write(b []byte) (int, error) {
	rec.final(http.StatusOK)
	n, err := rec.ResponseWriter.Write(b)
	rec.written += int64(n)
	return n, err
}

// Flush is for handlers that check for [http.Flusher].
func (rec *recorder) Flush() { _ = rec.FlushError() }

// FlushError is for [http.ResponseController].
func (rec *recorder) FlushError() error {
	err := http.NewResponseController(rec.ResponseWriter).Flush()
	if err == nil {
		rec.final(http.StatusOK)
	}
	return err
}

// final records the status unless there is one.
func (rec *recorder) final(status int) {
	if rec.status == 0 {
		rec.status = status
	}
}

// outcome returns what the response came to when the handler is done: returned is false
// if it panicked.
func (rec *recorder) outcome(returned bool) nethttp.Outcome {
	o := nethttp.Outcome{Status: rec.status, Written: rec.written, Hijacked: rec.hijacked}
	switch {
	case o.Status != 0:
	case returned:
		o.Status = http.StatusOK
	default:
		o.Status = http.StatusInternalServerError
	}
	return o
}

type hijackRecorder struct{ *recorder }

func (h *hijackRecorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(h.ResponseWriter).Hijack()
	h.hijacked = h.hijacked || err == nil
	return conn, rw, err
}
