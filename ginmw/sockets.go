package ginmw

import (
	"bufio"
	"io"
	"net"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/headgate/headgate/nethttp"
)

// upgrade runs the following handlers for a socket. Gin may hold the status back.
func upgrade(c *gin.Context, r *http.Request, v nethttp.Verdict) {
	v.Upgrade(c.Writer, r, func(w http.ResponseWriter, r *http.Request) int {
		guarded := &socketWriter{c.Writer, w}
		c.Writer, c.Request = guarded, r
		c.Next()
		return guarded.Status()
	})
}

// A socketWriter is the guard's writer with the other methods that Gin needs. Nothing may get
// around the guard.
type socketWriter struct {
	gin.ResponseWriter

	guarded http.ResponseWriter
}

// Unwrap is for [http.ResponseController].
func (w *socketWriter) Unwrap() http.ResponseWriter { return w.guarded }

func (w *socketWriter) WriteHeader(status int) { w.guarded.WriteHeader(status) }

func (w *socketWriter) WriteHeaderNow() {
	if !w.Written() {
		w.guarded.WriteHeader(w.Status())
	}
	w.ResponseWriter.WriteHeaderNow()
}

func (w *socketWriter) Write(p []byte) (int, error) { return w.guarded.Write(p) }

func (w *socketWriter) WriteString(s string) (int, error) { return io.WriteString(w.guarded, s) }

// Flush is for handlers that check for [http.Flusher].
func (w *socketWriter) Flush() { _ = w.FlushError() }

// FlushError is for [http.ResponseController].
func (w *socketWriter) FlushError() error { return http.NewResponseController(w.guarded).Flush() }

func (w *socketWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return http.NewResponseController(w.guarded).Hijack()
}
