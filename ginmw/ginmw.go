package ginmw

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"sync/atomic"

	"github.com/gin-gonic/gin"

	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// Middleware returns middleware of a guard of package nethttp or websocketmw, or of anything else that wraps a handler,
// such as a [keyfuncs.SignedCookie]. A refused request is aborted, and its [*nethttp.Verdict] is in c.Errors. It panics
// if the guard is nil.
func Middleware(guard interface {
	Handler(next http.Handler) http.Handler
},
) gin.HandlerFunc {
	if guard == nil {
		panic("headgate: ginmw: the guard is nil")
	}
	handler := guard.Handler(http.HandlerFunc(next))
	return func(ginContext *gin.Context) {
		visit := &visit{Context: ginContext.Request.Context()}
		visit.ginContext.Store(ginContext)
		entrance := &entrance{ResponseWriter: ginContext.Writer, visit: visit}
		ginContext.Writer = entrance
		defer entrance.end(ginContext) // Gin uses its contexts again
		handler.ServeHTTP(entrance, ginContext.Request.WithContext(visit))
		if !visit.passed {
			ginContext.Abort()
			ginContext.Writer.WriteHeaderNow() // HEAD has no body, and other middleware calls Written
		}
	}
}

// A visit is a request in front of the guard and behind it. It is the context of the request there, which sockets
// keep. So it must not reach the writer: that has the connection, which nobody would find forgotten.
type visit struct {
	context.Context

	ginContext atomic.Pointer[gin.Context] // nil when the guard is done
	passed     bool
}

// An entrance is the writer on which the guard refuses. It is that of Gin's context as well, until the handlers behind
// the guard run: so the guard knows of an answer that OnRefused gives by the context. The type writer is not on the way
// of a refusal: it is for requests that pass.
type entrance struct {
	gin.ResponseWriter

	visit *visit
	begun bool // there is a status, which may not be written yet: Written alone would miss it
}

// leave gives the context its own writer again.
func leave(ginContext *gin.Context) {
	if entrance, ok := ginContext.Writer.(*entrance); ok {
		ginContext.Writer = entrance.ResponseWriter
	}
}

func (e *entrance) end(ginContext *gin.Context) {
	leave(ginContext)
	e.visit.ginContext.Store(nil)
}

// Unwrap is for [http.ResponseController].
func (e *entrance) Unwrap() http.ResponseWriter { return e.ResponseWriter }

// WriteHeader notes that the response has begun, unless it is a hint before one (RFC 9110, 15.2).
func (e *entrance) WriteHeader(status int) {
	e.begun = e.begun || status >= http.StatusOK || status == http.StatusSwitchingProtocols
	e.ResponseWriter.WriteHeader(status)
}

// Write sends status 200 if there is none. Gin would send 404 where no route has matched.
func (e *entrance) Write(data []byte) (int, error) {
	if !e.begun && !e.Written() {
		e.WriteHeader(http.StatusOK)
	}
	return e.ResponseWriter.Write(data)
}

func (e *entrance) WriteString(text string) (int, error) { return e.Write([]byte(text)) }

type (
	visitKey struct{}
	valueKey string
)

// Value implements [context.Context].
func (v *visit) Value(key any) any {
	switch key := key.(type) {
	case visitKey:
		return v
	case valueKey: // of the key function Value
		ginContext := v.ginContext.Load()
		if ginContext != nil {
			value, _ := ginContext.Get(string(key))
			return value
		}
	}
	return v.Context.Value(key)
}

// Refused is what the guard calls with a refusal.
func (e *entrance) Refused(verdict *nethttp.Verdict, _ string) (answered bool) {
	ginContext := e.visit.ginContext.Load()
	// This is ginContext.Error, which would look for a gin.Error in the verdict first.
	ginContext.Errors = append(ginContext.Errors, &gin.Error{Err: verdict, Type: gin.ErrorTypePrivate})
	return e.begun || e.Written() // OnRefused has written: by its writer, or by the context, which only this one sees
}

// next runs the handlers behind the guard.
func next(w http.ResponseWriter, r *http.Request) {
	visit, _ := r.Context().Value(visitKey{}).(*visit)
	ginContext := visit.ginContext.Load()
	visit.passed = true
	ginContext.Request = r
	leave(ginContext)
	_, same := w.(*entrance)
	if same { // the guard does not look at the response
		ginContext.Next()
		return
	}
	// The guard sees the response through w, and Gin needs the methods of its own writer.
	inner := ginContext.Writer
	ginContext.Writer = &writer{inner, w}
	defer func() { ginContext.Writer = inner }()
	ginContext.Next()
	if !inner.Written() {
		w.WriteHeader(inner.Status()) // which Gin sends when all handlers have returned
	}
}

// A writer is the guard's writer, with the other methods that Gin needs. Like Gin's, it sends the status late.
type writer struct {
	gin.ResponseWriter

	guarded http.ResponseWriter
}

func (w *writer) Unwrap() http.ResponseWriter { return w.guarded }

func (w *writer) WriteHeader(status int) {
	w.ResponseWriter.WriteHeader(status)
	if status == http.StatusSwitchingProtocols {
		w.WriteHeaderNow()
	}
}

func (w *writer) WriteHeaderNow() {
	if !w.Written() {
		w.guarded.WriteHeader(w.Status())
		w.ResponseWriter.WriteHeaderNow()
	}
}

func (w *writer) Write(data []byte) (int, error) {
	w.WriteHeaderNow()
	return w.guarded.Write(data)
}

func (w *writer) WriteString(text string) (int, error) {
	w.WriteHeaderNow()
	return io.WriteString(w.guarded, text)
}

func (w *writer) Flush() { _ = w.FlushError() }

// FlushError is for [http.ResponseController].
func (w *writer) FlushError() error {
	w.WriteHeaderNow()
	return http.NewResponseController(w.guarded).Flush()
}

func (w *writer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return http.NewResponseController(w.guarded).Hijack()
}

// Context returns Gin's context of a request that a function of a guard gets, or nil: if the request did not pass a
// Middleware, and when the guard is done with it.
func Context(r *http.Request) *gin.Context {
	if visit, ok := r.Context().Value(visitKey{}).(*visit); ok {
		return visit.ginContext.Load()
	}
	return nil
}

// Key returns a key, or a plan, from Gin's context. get returns [keyfuncs.ErrAbsent] if there is none, and is called
// concurrently. Without a Middleware it is [keyfuncs.ErrProgram]. Key panics if get is nil.
func Key(get func(*gin.Context) (string, error)) keyfuncs.Func {
	if get == nil {
		panic("headgate: ginmw: the function of a Key is nil")
	}
	return func(r *http.Request) (string, error) {
		ginContext := Context(r)
		if ginContext != nil {
			return get(ginContext)
		}
		return "", keyfuncs.ErrProgram
	}
}

// Value returns a value that earlier middleware stored with c.Set, such as the signed-in user or the plan: of a string
// or integer type, or a [fmt.Stringer]. One that is missing, nil or empty is [keyfuncs.ErrAbsent], and one of another
// type [keyfuncs.ErrProgram].
func Value(name string) keyfuncs.Func {
	value := keyfuncs.Context(valueKey(name)) // which a visit finds
	return func(r *http.Request) (string, error) {
		if Context(r) == nil {
			return "", keyfuncs.ErrProgram
		}
		return value(r)
	}
}

// Route returns the pattern of the route, such as "/items/:id", for all methods together. It is for use within
// [keyfuncs.All]. All requests that match no route have one key.
func Route() keyfuncs.Func {
	return Key(func(ginContext *gin.Context) (string, error) {
		path := ginContext.FullPath()
		if path != "" {
			return path, nil
		}
		return "no route", nil
	})
}
