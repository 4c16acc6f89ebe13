package echomw

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/headgate/headgate/nethttp"
)

// within returns the writer within that of Echo, and what replaces it. It is not ok if that is not
// known, and nothing is known of the response.
func within(c echo.Context) (inner http.ResponseWriter, replace func(http.ResponseWriter), ok bool) {
	response := c.Response()
	return response.Writer, func(w http.ResponseWriter) { response.Writer = w }, true
}

// outcome returns what the following handlers did, as far as Echo knows it.
func outcome(c echo.Context, err error, returned bool) nethttp.Outcome {
	response := c.Response()
	o := nethttp.Outcome{Status: response.Status, Written: response.Size}
	if !response.Committed && (err != nil || !returned) {
		o.Status = statusOf(err)
	}
	return o
}

// statusOf is what Echo's error handler will answer; nil stands for a panic. Like
// that handler it does not look into errors of other types.
func statusOf(err error) int {
	he, ok := err.(*echo.HTTPError) //nolint:errorlint // see above
	if !ok {
		return http.StatusInternalServerError
	}
	if inner, ok := he.Internal.(*echo.HTTPError); ok { //nolint:errorlint // see above
		return inner.Code
	}
	return he.Code
}

// refusal returns the error for a status.
func refusal(status int, cause error) error {
	return &echo.HTTPError{Code: status, Message: http.StatusText(status), Internal: cause}
}
