package echomw

import (
	"bufio"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/labstack/echo/v4"

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
		panic("headgate: echomw: the guard is nil")
	}
	handler := guard.Handler(http.HandlerFunc(next))
	messages := new(messages)
	return func(following echo.HandlerFunc) echo.HandlerFunc { // Echo calls it for each request
		return func(c echo.Context) error {
			visit := &visit{Context: c.Request().Context(), echoContext: c, following: following}
			entrance := &entrance{Response: c.Response(), visit: visit, messages: messages}
			entrance.under = under{entrance.Writer, entrance.Response}
			entrance.Writer = &entrance.under
			defer entrance.end() // Echo uses its contexts again
			handler.ServeHTTP(entrance, c.Request().WithContext(visit))
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
	refusal   echo.HTTPError // the err, if the guard has refused

	mu          sync.Mutex
	echoContext echo.Context // nil when the guard is done
}

// An entrance is the writer on which the guard refuses.
type entrance struct {
	*echo.Response

	visit    *visit
	messages *messages
	under    under
}

// An under is the writer of Echo's response until the handlers behind the guard run. Echo does not note that a
// connection was hijacked, and would answer a refusal on it.
type under struct {
	http.ResponseWriter

	response *echo.Response
}

// Unwrap is for [http.ResponseController].
func (u *under) Unwrap() http.ResponseWriter { return u.ResponseWriter }

func (u *under) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(u.ResponseWriter).Hijack()
	u.response.Committed = u.response.Committed || err == nil
	return conn, rw, err
}

// leave gives the response its own writer again.
func leave(response *echo.Response) {
	if under, ok := response.Writer.(*under); ok {
		response.Writer = under.ResponseWriter
	}
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
		c := v.context()
		if c != nil {
			return c.Get(string(key))
		}
	}
	return v.Context.Value(key)
}

func (v *visit) context() echo.Context {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.echoContext
}

func (e *entrance) end() {
	leave(e.Response)
	e.visit.mu.Lock()
	defer e.visit.mu.Unlock()
	e.visit.echoContext = nil
}

// Refused is what the guard calls with a refusal.
func (e *entrance) Refused(verdict *nethttp.Verdict, document string) (answered bool) {
	if !e.Committed {
		e.visit.refusal = echo.HTTPError{Code: verdict.Status, Message: e.messages.of(document), Internal: verdict}
		e.visit.err = &e.visit.refusal
	}
	return true
}

// A message is the problem document of a refusal. Echo encodes a struct several times as fast as a text in JSON.
type message struct {
	Type             string   `json:"type"`
	Title            string   `json:"title"`
	Status           int      `json:"status"`
	ViolatedPolicies []string `json:"violated-policies,omitzero"`
}

// messages has the message of the last document: most refusals of a guard have the same.
type messages struct{ last atomic.Pointer[parsed] }

type parsed struct {
	document string
	message  message
}

// of returns the message of a document.
func (m *messages) of(document string) any {
	last := m.last.Load()
	if last != nil && last.document == document {
		return &last.message
	}
	parsed := &parsed{document: document}
	if err := json.Unmarshal([]byte(document), &parsed.message); err != nil {
		return json.RawMessage(document)
	}
	m.last.Store(parsed)
	return &parsed.message
}

// next runs the handlers behind the guard.
func next(w http.ResponseWriter, r *http.Request) {
	visit, _ := r.Context().Value(visitKey{}).(*visit)
	c := visit.echoContext
	c.SetRequest(r)
	leave(c.Response())
	_, same := w.(*entrance)
	if same { // the guard does not look at the response
		visit.err = visit.following(c)
		return
	}
	response := c.Response()
	c.SetResponse(echo.NewResponse(w, c.Echo()))
	defer c.SetResponse(response)
	visit.err = visit.following(c)
	if visit.err != nil {
		c.Error(visit.err) // so that the guard sees the response to the error
	}
}

// Context returns Echo's context of a request that a function of a guard gets, or nil: if the request did not pass a
// Middleware, and when the guard is done with it.
func Context(r *http.Request) echo.Context {
	if visit, ok := r.Context().Value(visitKey{}).(*visit); ok {
		return visit.context()
	}
	return nil
}

// Key returns a key, or a plan, from Echo's context. get returns [keyfuncs.ErrAbsent] if there is none, and is called
// concurrently. Without a Middleware it is [keyfuncs.ErrProgram]. Key panics if get is nil.
func Key(get func(echo.Context) (string, error)) keyfuncs.Func {
	if get == nil {
		panic("headgate: echomw: the function of a Key is nil")
	}
	return func(r *http.Request) (string, error) {
		c := Context(r)
		if c != nil {
			return get(c)
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
	return Key(func(c echo.Context) (string, error) {
		path := c.Path()
		if path != "" {
			return path, nil
		}
		return "no route", nil
	})
}
