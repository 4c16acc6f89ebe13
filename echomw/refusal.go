package echomw

import (
	"bytes"
	"encoding/json"
	"net/http"
	"reflect"
	"strings"
	"sync"

	"github.com/labstack/echo/v4"

	"github.com/headgate/headgate/nethttp"
)

// refuse answers a request that the guard refuses. What the guard itself would write, an
// error handler of the application's writes instead, from the error that is returned.
// Echo's own does nothing with the error of a response that has been written.
func refuse(c echo.Context, guard *nethttp.Guard, v *nethttp.Verdict) error {
	return refuseWith(c, v.Status(), v.Problem, v.Err, func(w http.ResponseWriter) { guard.Refuse(w, c.Request(), v) })
}

// refuseWith calls write, which writes the refusal that the other parameters describe.
func refuseWith(c echo.Context, status int, document func() []byte, cause error, write func(http.ResponseWriter)) error {
	response := c.Response()
	w := &refusalWriter{ResponseWriter: response, status: status, direct: answersByDefault(c.Echo())}
	write(w)
	switch {
	case !w.document:
		return nil
	case w.direct:
		w.err = echo.HTTPError{Code: status, Message: title(status), Internal: cause}
		return &w.err
	}
	message := &problem{document: document(), title: http.StatusText(status)}
	response.Before(func() { message.label(c.Request(), response) })
	// Guards wrap the errors of keys. Otherwise Echo's error handler would answer with an
	// Internal that is itself an *echo.HTTPError.
	return &echo.HTTPError{Code: status, Message: message, Internal: cause}
}

// title returns the text of a status. That of most refusals is converted to an interface
// once, as that takes an allocation.
func title(status int) any {
	if status == http.StatusTooManyRequests {
		return tooManyRequests
	}
	return http.StatusText(status)
}

var tooManyRequests any = http.StatusText(http.StatusTooManyRequests) //nolint:gochecknoglobals // a constant

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

// A problem is the document as the Message of an error.
type problem struct {
	document []byte
	title    string
	used     bool // perhaps only by a log, or within another body
}

// String is for the text of the error.
func (p *problem) String() string { return p.title }

// MarshalJSON is how the error handler writes it.
func (p *problem) MarshalJSON() ([]byte, error) {
	p.used = true
	return p.document, nil
}

// label gives the response its type just before it is sent, if it is the document.
// Setting it earlier would label the page of another error handler too.
func (p *problem) label(r *http.Request, response *echo.Response) {
	switch kind := response.Header().Get("Content-Type"); {
	case kind == "" && r.Method == http.MethodHead:
		response.Header().Set("Content-Type", nethttp.ProblemType)
	case p.used && strings.HasPrefix(kind, echo.MIMEApplicationJSON):
		response.Writer = &labeler{ResponseWriter: response.Writer, response: response, document: p.document}
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
	l.response.Writer = l.ResponseWriter
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
