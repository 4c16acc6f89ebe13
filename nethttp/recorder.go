package nethttp

import (
	"bufio"
	"io"
	"net"
	"net/http"
)

// A recorder records what is written through it. Handlers get the result of its method
// writer.
type recorder struct {
	http.ResponseWriter

	status   int // the final status; 0: not yet written
	written  int64
	hijacked bool
}

// Unwrap is for [http.ResponseController].
func (rec *recorder) Unwrap() http.ResponseWriter { return rec.ResponseWriter }

func (rec *recorder) WriteHeader(status int) {
	informational := status >= 100 && status < 200 && status != http.StatusSwitchingProtocols
	if rec.status == 0 && !informational {
		rec.status = status
	}
	rec.ResponseWriter.WriteHeader(status)
}

func (rec *recorder) Write(b []byte) (int, error) {
	n, err := rec.ResponseWriter.Write(b)
	rec.wrote(int64(n))
	return n, err
}

// WriteString avoids a copy of s if the writer within has WriteString.
func (rec *recorder) WriteString(s string) (int, error) {
	n, err := io.WriteString(rec.ResponseWriter, s)
	rec.wrote(int64(n))
	return n, err
}

// wrote records that n bytes of the body were written, and hence the header.
func (rec *recorder) wrote(n int64) {
	if rec.status == 0 {
		rec.status = http.StatusOK
	}
	rec.written += n
}

// ReadFrom lets io.Copy use the ReadFrom of the writer within, by which net/http sends
// files without copying them. If that writer has none, io.Copy uses its Write.
func (rec *recorder) ReadFrom(src io.Reader) (int64, error) {
	n, err := io.Copy(rec.ResponseWriter, src)
	rec.wrote(n)
	return n, err
}

// writer returns the recorder with Flush and Hijack if the writer within has them:
// handlers look for them by type assertion, so the recorder must not have them always.
//
// It has no Push. Browsers ignore HTTP/2 pushes, and a handler must work without
// http.Pusher anyway, because HTTP/1 has none.
func (rec *recorder) writer() http.ResponseWriter {
	_, flushes := rec.ResponseWriter.(http.Flusher)
	hijacks := canHijack(rec.ResponseWriter)
	switch {
	case flushes && hijacks:
		return struct {
			*recorder
			flusher
			hijacker
		}{rec, flusher{rec}, hijacker{rec}}
	case flushes:
		return struct {
			*recorder
			flusher
		}{rec, flusher{rec}}
	case hijacks:
		return struct {
			*recorder
			hijacker
		}{rec, hijacker{rec}}
	default:
		return rec
	}
}

// canHijack also looks inside w, as http.ResponseController does.
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

type flusher struct{ rec *recorder }

func (f flusher) Flush() { _ = f.FlushError() }

func (f flusher) FlushError() error {
	f.rec.wrote(0)
	return http.NewResponseController(f.rec.ResponseWriter).Flush()
}

type hijacker struct{ rec *recorder }

func (h hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(h.rec.ResponseWriter).Hijack()
	h.rec.hijacked = h.rec.hijacked || err == nil
	return conn, rw, err
}
