package echov5mw

import (
	"bytes"
	"encoding/json"
	"net/http"
	"reflect"
	"strings"

	"github.com/labstack/echo/v5"

	"github.com/headgate/headgate/nethttp"
)

// refuse lets the guard's OnDenied write the refusal. What the guard itself would write,
// refuse returns as an error for the application's error handler.
func refuse(c *echo.Context, guard *nethttp.Guard, v *nethttp.Verdict) error {
	return deny(c, v.Status(), v.Problem(), v.Err, func(w http.ResponseWriter) { guard.Deny(w, c.Request(), *v) })
}

// deny calls write, which writes the refusal that the other parameters describe.
func deny(c *echo.Context, status int, document []byte, cause error, write func(http.ResponseWriter)) error {
	w := &denial{ResponseWriter: c.Response(), status: status}
	write(w)
	if !w.handed {
		return nil
	}
	message := echo.HTTPError{Code: status, Message: http.StatusText(status)}
	err := &refusal{document: document, status: status, within: message.Wrap(cause)}
	if response, e := echo.UnwrapResponse(c.Response()); e == nil {
		response.Before(func() { err.label(c.Request(), response) })
	}
	return err
}

// A denial forwards what OnDenied writes, and withholds the problem document, also if
// OnDenied writes it as the guard does.
type denial struct {
	http.ResponseWriter

	status int  // of the refusal
	handed bool // the document is for the error handler
}

// Unwrap is for [http.ResponseController].
func (d *denial) Unwrap() http.ResponseWriter { return d.ResponseWriter }

func (d *denial) WriteHeader(status int) {
	h := d.Header()
	if status == d.status && h.Get("Content-Type") == nethttp.ProblemType {
		d.handed = true
		// The error handler may write another body.
		h.Del("Content-Type")
		h.Del("Content-Length")
		return
	}
	d.ResponseWriter.WriteHeader(status)
}

func (d *denial) Write(b []byte) (int, error) {
	if d.handed {
		return len(b), nil
	}
	return d.ResponseWriter.Write(b)
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
