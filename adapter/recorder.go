package adapter

import (
	"bufio"
	"net"
	"net/http"
)

// A Recorder is a writer of a response that records whether the connection was hijacked, for
// [nethttp.Outcome]. Frameworks' own writers do not.
type Recorder struct {
	http.ResponseWriter

	Hijacked bool
}

// Unwrap is for [http.ResponseController], by which frameworks flush.
func (w *Recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Hijack implements [http.Hijacker].
func (w *Recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	w.Hijacked = w.Hijacked || err == nil
	return conn, rw, err
}
