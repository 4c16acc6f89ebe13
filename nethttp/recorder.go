package nethttp

import (
	"bufio"
	"io"
	"net"
	"net/http"
)

// A recorder notes what is written through it. Handlers get its writer.
type recorder struct {
	http.ResponseWriter

	status   int // the final one; 0: not yet written
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

// WriteString keeps the writer within from copying.
func (rec *recorder) WriteString(s string) (int, error) {
	n, err := io.WriteString(rec.ResponseWriter, s)
	rec.wrote(int64(n))
	return n, err
}

// wrote notes that n bytes were written, and so that the header was.
func (rec *recorder) wrote(n int64) {
	if rec.status == 0 {
		rec.status = http.StatusOK
	}
	rec.written += n
}

// The abilities that a writer may have besides.
const (
	flushes = 1 << iota
	readsFrom
	pushes
	hijacks
)

func abilities(w http.ResponseWriter) (a int) {
	if _, ok := w.(http.Flusher); ok {
		a |= flushes
	}
	if _, ok := w.(io.ReaderFrom); ok {
		a |= readsFrom
	}
	if _, ok := w.(http.Pusher); ok {
		a |= pushes
	}
	if canHijack(w) {
		a |= hijacks
	}
	return a
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

type flusher struct{ rec *recorder }

func (f flusher) Flush() { _ = f.FlushError() }

func (f flusher) FlushError() error {
	f.rec.wrote(0)
	return http.NewResponseController(f.rec.ResponseWriter).Flush()
}

type readerFrom struct{ rec *recorder }

func (f readerFrom) ReadFrom(src io.Reader) (int64, error) {
	n, err := f.rec.ResponseWriter.(io.ReaderFrom).ReadFrom(src)
	f.rec.wrote(n)
	return n, err
}

type pusher struct{ rec *recorder }

func (p pusher) Push(target string, o *http.PushOptions) error {
	return p.rec.ResponseWriter.(http.Pusher).Push(target, o)
}

type hijacker struct{ rec *recorder }

func (h hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(h.rec.ResponseWriter).Hijack()
	h.rec.hijacked = h.rec.hijacked || err == nil
	return conn, rw, err
}

// writer returns the recorder with the abilities of the writer within and no more:
// handlers ask by type assertion, and must not find that a connection can be
// hijacked which cannot.
func (rec *recorder) writer() http.ResponseWriter {
	f, r, p, h := flusher{rec}, readerFrom{rec}, pusher{rec}, hijacker{rec}
	switch abilities(rec.ResponseWriter) {
	case flushes:
		return struct {
			*recorder
			flusher
		}{rec, f}
	case readsFrom:
		return struct {
			*recorder
			readerFrom
		}{rec, r}
	case flushes | readsFrom:
		return struct {
			*recorder
			flusher
			readerFrom
		}{rec, f, r}
	case pushes:
		return struct {
			*recorder
			pusher
		}{rec, p}
	case flushes | pushes:
		return struct {
			*recorder
			flusher
			pusher
		}{rec, f, p}
	case readsFrom | pushes:
		return struct {
			*recorder
			readerFrom
			pusher
		}{rec, r, p}
	case flushes | readsFrom | pushes:
		return struct {
			*recorder
			flusher
			readerFrom
			pusher
		}{rec, f, r, p}
	case hijacks:
		return struct {
			*recorder
			hijacker
		}{rec, h}
	case flushes | hijacks:
		return struct {
			*recorder
			flusher
			hijacker
		}{rec, f, h}
	case readsFrom | hijacks:
		return struct {
			*recorder
			readerFrom
			hijacker
		}{rec, r, h}
	case flushes | readsFrom | hijacks:
		return struct {
			*recorder
			flusher
			readerFrom
			hijacker
		}{rec, f, r, h}
	case pushes | hijacks:
		return struct {
			*recorder
			pusher
			hijacker
		}{rec, p, h}
	case flushes | pushes | hijacks:
		return struct {
			*recorder
			flusher
			pusher
			hijacker
		}{rec, f, p, h}
	case readsFrom | pushes | hijacks:
		return struct {
			*recorder
			readerFrom
			pusher
			hijacker
		}{rec, r, p, h}
	case flushes | readsFrom | pushes | hijacks:
		return struct {
			*recorder
			flusher
			readerFrom
			pusher
			hijacker
		}{rec, f, r, p, h}
	default:
		return rec
	}
}
