package ginmw

import (
	"bufio"
	"io"
	"net"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/headgate/headgate/websocketmw"
)

// Sockets returns a middleware that holds a slot for each WebSocket that the following
// handlers upgrade, as long as it is open. It answers and aborts upgrades for which there is
// no slot. Other requests are not affected.
//
//	r.GET("/ws", ginmw.Sockets(guard), upgrade)
//
// The upgrade may be by any library, on c.Writer and c.Request, in whose context
// [websocketmw.FromContext] finds the socket. Put gin.Recovery before the guard, which
// closes the connection of a handler that panics. Sockets panics if the guard is nil.
func Sockets(guard *websocketmw.Guard) gin.HandlerFunc {
	carries := guard.Mount()
	return func(c *gin.Context) {
		visit := framework.Enter(c, carries)
		defer visit.End()
		v := guard.Check(visit.Request)
		switch {
		case v.Status() != 0:
			refuse(c, v.Err, func() { guard.Refuse(c.Writer, visit.Request, v) })
		case v.Upgrades():
			handshake, _ := v.Handshake()
			_, settle := handshake.Begin(visit.Request)
			v.Serve(c.Writer, c.Request, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				c.Writer, c.Request = &socketWriter{c.Writer, w}, r
				if settle != nil { // before Serve does, which does not see what Gin holds back
					serve(c, r, settle)
					return
				}
				c.Next()
			}))
		}
		// Otherwise Gin calls the next handler itself.
	}
}

// A socketWriter is the guard's writer with the other methods that Gin needs. Nothing may get
// around the guard: over HTTP/2, what the handler writes are frames.
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
