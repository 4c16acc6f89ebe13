package echov5mw

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"sync"

	"github.com/labstack/echo/v5"

	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// Middleware returns middleware of a guard of package nethttp or websocketmw, or of anything else that wraps a handler,
// such as a [keyfuncs.SignedCookie]. It returns the error of a refusal, as the package's documentation says. It panics
// if the guard is nil.
func Middleware(guard interface {
	Handler(next http.Handler) http.Handler
},
) echo.MiddlewareFunc {
	if guard == nil {
		panic("headgate: echov5mw: the guard is nil")
	}
	return func(following echo.HandlerFunc) echo.HandlerFunc {
		handler := guard.Handler(http.HandlerFunc(next))
		return func(echoContext *echo.Context) error {
			visit := &visit{Context: echoContext.Request().Context(), echoContext: echoContext, following: following}
			entrance := &entrance{echoContext.Response(), visit}
			echoContext.SetResponse(entrance)
			defer visit.end() // Echo uses its contexts again
			handler.ServeHTTP(entrance, echoContext.Request().WithContext(visit))
			return visit.err
		}
	}
}

// A visit is a request in front of the guard and behind it. It is the context of the request there, which sockets
// keep. So it must not reach the writer: that has the connection, which nobody would find forgotten.
type visit struct {
	context.Context

	following echo.HandlerFunc
	err       error

	mu          sync.Mutex
	echoContext *echo.Context // nil when the guard is done
}

// An entrance is the writer on which the guard refuses. It is that of Echo's context as well, until the handlers behind
// the guard run.
type entrance struct {
	http.ResponseWriter

	visit *visit
}

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
		echoContext := v.context()
		if echoContext != nil {
			return echoContext.Get(string(key))
		}
	}
	return v.Context.Value(key)
}

func (v *visit) context() *echo.Context {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.echoContext
}

func (v *visit) end() {
	leave(v.echoContext)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.echoContext = nil
}

// Unwrap is for [http.ResponseController].
func (e *entrance) Unwrap() http.ResponseWriter { return e.ResponseWriter }

// Flush is for the guard, which offers it to handlers if it is there.
func (e *entrance) Flush() { _ = http.NewResponseController(e.ResponseWriter).Flush() }

// Hijack notes that there is an answer. Echo does not, and would answer a refusal on the connection.
func (e *entrance) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(e.ResponseWriter).Hijack()
	response, _ := echo.UnwrapResponse(e.ResponseWriter)
	if response != nil && err == nil {
		response.Committed = true
	}
	return conn, rw, err
}

// leave gives the context its own writer again.
func leave(echoContext *echo.Context) {
	if entrance, ok := echoContext.Response().(*entrance); ok {
		echoContext.SetResponse(entrance.ResponseWriter)
	}
}

// Refused is what the guard calls with a refusal.
func (e *entrance) Refused(verdict *nethttp.Verdict, document string) (answered bool) {
	if !committed(e.ResponseWriter) {
		e.visit.err = &refusal{verdict, document}
	}
	return true
}

func committed(w http.ResponseWriter) bool {
	response, _ := echo.UnwrapResponse(w)
	return response != nil && response.Committed
}

// A refusal is a verdict as Echo's error handler knows errors: it has a status, and says how it is written as JSON.
type refusal struct {
	*nethttp.Verdict

	document string
}

func (r *refusal) StatusCode() int              { return r.Status }
func (r *refusal) MarshalJSON() ([]byte, error) { return []byte(r.document), nil }
func (r *refusal) Unwrap() error                { return r.Verdict }

// next runs the handlers behind the guard.
func next(w http.ResponseWriter, r *http.Request) {
	visit, _ := r.Context().Value(visitKey{}).(*visit)
	echoContext := visit.echoContext
	echoContext.SetRequest(r)
	leave(echoContext)
	_, same := w.(*entrance)
	if same { // the guard does not look at the response
		visit.err = visit.following(echoContext)
		return
	}
	response := echoContext.Response()
	echoContext.SetResponse(echo.NewResponse(w, echoContext.Logger()))
	defer echoContext.SetResponse(response)
	visit.err = visit.following(echoContext)
	if visit.err != nil {
		echoContext.Echo().HTTPErrorHandler(echoContext, visit.err) // so that the guard sees the response to the error
	}
}

// Context returns Echo's context of a request that a function of a guard gets, or nil: if the request did not pass a
// Middleware, and when the guard is done with it.
func Context(r *http.Request) *echo.Context {
	if visit, ok := r.Context().Value(visitKey{}).(*visit); ok {
		return visit.context()
	}
	return nil
}

// Key returns a key, or a plan, from Echo's context. get returns [keyfuncs.ErrAbsent] if there is none, and is called
// concurrently. Without a Middleware it is [keyfuncs.ErrProgram]. Key panics if get is nil.
func Key(get func(*echo.Context) (string, error)) keyfuncs.Func {
	if get == nil {
		panic("headgate: echov5mw: the function of a Key is nil")
	}
	return func(r *http.Request) (string, error) {
		echoContext := Context(r)
		if echoContext != nil {
			return get(echoContext)
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
	return Key(func(echoContext *echo.Context) (string, error) {
		path := echoContext.Path()
		if path != "" {
			return path, nil
		}
		return "no route", nil
	})
}
