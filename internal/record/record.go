// Package record records the status and the bytes that pass through an http.ResponseWriter.
package record

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
)

// A Recorder records the response that is written through it. Handlers get the result of
// Writer, which has more methods.
type Recorder struct {
	http.ResponseWriter

	Status   int   // the final status; 0: not yet written
	Written  int64 // bytes of the body
	Hijacked bool
}

// Responded reports whether there is a response, or the connection was hijacked.
func (rec *Recorder) Responded() bool { return rec.Status != 0 || rec.Hijacked }

// Final returns the status when the handler is done: returned is false if it panicked.
func (rec *Recorder) Final(returned bool) int {
	switch {
	case rec.Status != 0:
		return rec.Status
	case returned:
		return http.StatusOK
	default:
		return http.StatusInternalServerError
	}
}

// Unwrap is for [http.ResponseController].
func (rec *Recorder) Unwrap() http.ResponseWriter { return rec.ResponseWriter }

// WriteHeader records a status unless there is one, or it is informational.
func (rec *Recorder) WriteHeader(status int) {
	informational := status >= 100 && status < 200 && status != http.StatusSwitchingProtocols
	if rec.Status == 0 && !informational {
		rec.Status = status
	}
	rec.ResponseWriter.WriteHeader(status)
}

func (rec *Recorder) Write(data []byte) (int, error) {
	n, err := rec.ResponseWriter.Write(data)
	rec.wrote(int64(n))
	return n, err
}

// wrote records that n bytes of the body were written, and hence the header.
func (rec *Recorder) wrote(n int64) {
	if rec.Status == 0 {
		rec.Status = http.StatusOK
	}
	rec.Written += n
}

// Writer returns the recorder with Flush and Hijack if the writer within has them. Handlers look
// for them by type assertion, so the recorder must not have them always. A writer with Flush has
// CloseNotify too if the writer within has it, as in net/http.
//
// It has no Push. Browsers ignore HTTP/2 pushes, and a handler must work without
// http.Pusher anyway, because HTTP/1 has none.
func (rec *Recorder) Writer() http.ResponseWriter {
	_, flushes := rec.ResponseWriter.(http.Flusher)
	hijacks := CanHijack(rec.ResponseWriter)
	closes, notifies := rec.ResponseWriter.(closeNotifier)
	w := &writer{rec}
	// A type for each set of methods, as a type has its methods whatever a value holds.
	switch {
	case flushes && hijacks && notifies:
		return struct {
			*writer
			flusher
			hijacker
			closeNotifier
		}{w, flusher{rec}, hijacker{rec}, closes}
	case flushes && notifies:
		return struct {
			*writer
			flusher
			closeNotifier
		}{w, flusher{rec}, closes}
	case flushes && hijacks:
		return struct {
			*writer
			flusher
			hijacker
		}{w, flusher{rec}, hijacker{rec}}
	case flushes:
		return struct {
			*writer
			flusher
		}{w, flusher{rec}}
	case hijacks:
		return struct {
			*writer
			hijacker
		}{w, hijacker{rec}}
	default:
		return w
	}
}

// CanHijack also looks inside w, as http.ResponseController does.
func CanHijack(w http.ResponseWriter) bool {
	for {
		if _, ok := w.(http.Hijacker); ok {
			return true
		}
		outer, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			return false
		}
		w = outer.Unwrap()
	}
}

// A writer is a Recorder that can be copied to at little cost.
type writer struct{ *Recorder }

// WriteString avoids a copy of the text if the writer within has WriteString.
func (w *writer) WriteString(text string) (int, error) {
	n, err := io.WriteString(w.ResponseWriter, text)
	w.wrote(int64(n))
	return n, err
}

// ReadFrom lets io.Copy use the ReadFrom of the writer within, by which net/http sends
// files without copying them. If that writer has none, io.Copy uses its Write.
func (w *writer) ReadFrom(src io.Reader) (int64, error) {
	n, err := io.Copy(w.ResponseWriter, src)
	w.wrote(n)
	return n, err
}

// A closeNotifier is an http.CloseNotifier, which is deprecated, and which Gin needs.
type closeNotifier interface{ CloseNotify() <-chan bool }

type flusher struct{ rec *Recorder }

func (f flusher) Flush() { _ = f.FlushError() }

func (f flusher) FlushError() error {
	err := http.NewResponseController(f.rec.ResponseWriter).Flush()
	if !errors.Is(err, http.ErrNotSupported) { // then nothing was sent
		f.rec.wrote(0)
	}
	return err
}

type hijacker struct{ rec *Recorder }

func (h hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(h.rec.ResponseWriter).Hijack()
	h.rec.Hijacked = h.rec.Hijacked || err == nil
	return conn, rw, err
}
