package rpc

import "net/http"

// A Code is the status of a call, by the numbers of gRPC, which connect has too.
type Code uint32

// The codes that guards answer with.
const (
	OK                Code = 0
	Canceled          Code = 1
	Unknown           Code = 2
	InvalidArgument   Code = 3
	DeadlineExceeded  Code = 4
	ResourceExhausted Code = 8
	Internal          Code = 13
	Unavailable       Code = 14
)

// httpStatus returns the status that google/rpc/code.proto maps the code to, so that functions for HTTP, such as
// nethttp.FailuresOnly, serve for calls. A number that gRPC does not have is a fault of the handler.
func (c Code) httpStatus() int {
	statuses := [...]int{ // by the number of the code
		http.StatusOK, 499, http.StatusInternalServerError, http.StatusBadRequest,
		http.StatusGatewayTimeout, http.StatusNotFound, http.StatusConflict, http.StatusForbidden,
		http.StatusTooManyRequests, http.StatusBadRequest, http.StatusConflict, http.StatusBadRequest,
		http.StatusNotImplemented, http.StatusInternalServerError, http.StatusServiceUnavailable,
		http.StatusInternalServerError, http.StatusUnauthorized,
	}
	if int(c) < len(statuses) {
		return statuses[c]
	}
	return http.StatusInternalServerError
}
