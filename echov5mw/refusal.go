package echov5mw

import (
	"bytes"
	"encoding/json"
	"net/http"
	"reflect"
	"strings"
	"sync"

	"github.com/labstack/echo/v5"

	"github.com/headgate/headgate/nethttp"
)

// refuse answers a request that the guard refuses. What the guard itself would write, an
// error handler of the application's writes instead, from the error that is returned.
// Echo's own does nothing with the error of a response that has been written.
func refuse(c *echo.Context, guard *nethttp.Guard, v *nethttp.Verdict) error {
	return refuseWith(c, v.Status(), v.Problem, v.Err, func(w http.ResponseWriter) { guard.Refuse(w, c.Request(), v) })
}

// refuseWith calls write, which writes the refusal that the other parameters describe.
func refuseWith(c *echo.Context, status int, document func() []byte, cause error, write func(http.ResponseWriter)) error {
	w := &refusalWriter{ResponseWriter: c.Response(), status: status, direct: answersByDefault(c.Echo())}
	write(w)
	if !w.document {
		return nil
	}
	w.err = echo.HTTPError{Code: status, Message: http.StatusText(status)}
	var within error = &w.err
	if cause != nil {
		within = w.err.Wrap(cause)
	}
	if w.direct {
		return within
	}
	err := &refusal{document: document(), status: status, within: within}
	if response, e := echo.UnwrapResponse(c.Response()); e == nil {
		response.Before(func() { err.label(c.Request(), response) })
	}
	return err
}

// answersByDefault reports whether errors are answered by Echo's default error handler,
// which would only encode the document once more, in several times the guard's time.
func answersByDefault(e *echo.Echo) bool { return codeOf(e.HTTPErrorHandler) == defaultHandler() }

//nolint:gochecknoglobals // a constant, as functions cannot be compared
var defaultHandler = sync.OnceValue(func() uintptr { return codeOf(echo.New().HTTPErrorHandler) })

func codeOf(h echo.HTTPErrorHandler) uintptr { return reflect.ValueOf(h).Pointer() }

// A refusalWriter forwards what OnRefused and the guard write. Unless it is direct, it
// withholds the problem document, also if OnRefused writes it as the guard does.
type refusalWriter struct {
	http.ResponseWriter

	status   int  // of the refusal
	direct   bool // the document is not for the error handler
	document bool // it was written

	err echo.HTTPError // to return: here, so that both take one allocation
}

// Unwrap is for [http.ResponseController].
func (w *refusalWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *refusalWriter) WriteHeader(status int) {
	h := w.Header()
	if kind := h["Content-Type"]; status == w.status && len(kind) == 1 && kind[0] == nethttp.ProblemType {
		w.document = true
		if !w.direct { // the error handler may write another body
			h.Del("Content-Type")
			h.Del("Content-Length")
			return
		}
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *refusalWriter) Write(b []byte) (int, error) {
	if w.document && !w.direct {
		return len(b), nil
	}
	return w.ResponseWriter.Write(b)
}

// A refusal is an error that Echo's error handler writes as the problem document.
type refusal struct {
	document []byte
	status   int
	within   error // for handlers that look for Echo's own type
	used     bool  // perhaps only by a log, or within another body
}

func (f *refusal) Error() string { return f.within.Error() }

func (f *refusal) Unwrap() error { return f.within }

// StatusCode is for the error handler.
func (f *refusal) StatusCode() int { return f.status }

// MarshalJSON is how the error handler writes it.
func (f *refusal) MarshalJSON() ([]byte, error) {
	f.used = true
	return f.document, nil
}

// label gives the response its type just before it is sent, if it is the document.
// Setting it earlier would label the page of another error handler too.
func (f *refusal) label(r *http.Request, response *echo.Response) {
	switch kind := response.Header().Get("Content-Type"); {
	case kind == "" && r.Method == http.MethodHead:
		response.Header().Set("Content-Type", nethttp.ProblemType)
	case f.used && strings.HasPrefix(kind, echo.MIMEApplicationJSON):
		response.ResponseWriter = &labeler{ResponseWriter: response.ResponseWriter, response: response, document: f.document}
	}
}

// A labeler is the writer of a response whose body may be the document. It sends the
// header when the first bytes of the body show what it is.
type labeler struct {
	http.ResponseWriter // which it replaces until the header is sent

	response *echo.Response
	document []byte
	status   int
}

// Unwrap is for [http.ResponseController].
func (l *labeler) Unwrap() http.ResponseWriter { return l.ResponseWriter }

func (l *labeler) WriteHeader(status int) { l.status = status }

func (l *labeler) Write(b []byte) (int, error) {
	if sameJSON(b, l.document) {
		l.Header().Set("Content-Type", nethttp.ProblemType)
	}
	l.send()
	return l.ResponseWriter.Write(b)
}

// FlushError is for [http.ResponseController], by which Echo flushes.
func (l *labeler) FlushError() error {
	l.send()
	return http.NewResponseController(l.ResponseWriter).Flush()
}

func (l *labeler) send() {
	l.response.ResponseWriter = l.ResponseWriter
	l.ResponseWriter.WriteHeader(l.status)
}

// sameJSON reports whether two texts are equal but for white space and escapes.
func sameJSON(a, b []byte) bool {
	if bytes.Equal(bytes.TrimSpace(a), b) {
		return true // as encoding/json writes most documents, and many times faster
	}
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}
