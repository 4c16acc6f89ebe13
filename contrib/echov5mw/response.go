package echov5mw

import (
	"net/http"

	"github.com/labstack/echo/v5"

	"github.com/headgate/headgate/nethttp"
)

// within returns the writer within that of Echo, and what replaces it. It is not ok if that is not
// known, and nothing is known of the response.
func within(c *echo.Context) (inner http.ResponseWriter, replace func(http.ResponseWriter), ok bool) {
	response, err := echo.UnwrapResponse(c.Response())
	if err != nil {
		return c.Response(), c.SetResponse, false
	}
	return response.ResponseWriter, func(w http.ResponseWriter) { response.ResponseWriter = w }, true
}

// outcome returns what the following handlers did, as far as Echo knows it.
func outcome(c *echo.Context, err error, returned bool) nethttp.Outcome {
	response, status := echo.ResolveResponseStatus(c.Response(), err)
	o := nethttp.Outcome{Status: status}
	if response != nil {
		o.Written = response.Size
	}
	if !returned && (response == nil || !response.Committed) {
		o.Status = http.StatusInternalServerError
	}
	return o
}

// refusal returns the error for a status.
func refusal(status int, cause error) error {
	err := &echo.HTTPError{Code: status, Message: http.StatusText(status)}
	if cause == nil {
		return err
	}
	return err.Wrap(cause)
}
