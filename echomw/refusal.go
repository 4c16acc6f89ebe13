package echomw

import (
	"fmt"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/headgate/headgate/nethttp"
)

// refuse lets the guard's OnDenied write the refusal. What the guard itself would write,
// refuse returns as an error for the application's error handler.
func refuse(c echo.Context, guard *nethttp.Guard, v *nethttp.Verdict) error {
	return deny(c, v.Status(), v.Problem(), v.Err, func(w http.ResponseWriter) { guard.Deny(w, c.Request(), *v) })
}

// deny calls write, which writes the refusal that the other parameters describe.
func deny(c echo.Context, status int, document []byte, cause error, write func(http.ResponseWriter)) error {
	response := c.Response()
	w := &denial{ResponseWriter: response, status: status}
	write(w)
	if !w.handed {
		return nil
	}
	if _, ok := cause.(*echo.HTTPError); ok { //nolint:errorlint // as Echo's error handler does
		// Echo's error handler would write an Internal of this type instead.
		cause = fmt.Errorf("headgate: echomw: %w", cause)
	}
	message := &problem{document: document, title: http.StatusText(status)}
	response.Before(func() { message.label(c) })
	return &echo.HTTPError{Code: status, Message: message, Internal: cause}
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

// A problem is the document as the Message of an error.
type problem struct {
	document []byte
	title    string
	used     bool
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
func (p *problem) label(c echo.Context) {
	h := c.Response().Header()
	if p.used || c.Request().Method == http.MethodHead && h.Get("Content-Type") == "" {
		h.Set("Content-Type", nethttp.ProblemType)
	}
}
