package headgated

import (
	"errors"
	"io"
	"net/http"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
)

// json answers a request of Envoy's rate limit service in JSON: with 200, or with 429 if it is refused.
func (s *Server) json(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		fail(w, http.StatusRequestEntityTooLarge, "the body is too large")
		return
	}
	var q pb.RateLimitRequest
	if err != nil || protojson.Unmarshal(body, &q) != nil {
		fail(w, http.StatusBadRequest, "the body is no RateLimitRequest in JSON")
		return
	}
	answer, err := s.limited(r.Context(), &q)
	switch status.Code(err) {
	case codes.OK:
	case codes.InvalidArgument:
		fail(w, http.StatusBadRequest, status.Convert(err).Message())
		return
	default:
		fail(w, http.StatusServiceUnavailable, status.Convert(err).Message())
		return
	}
	text, err := protojson.Marshal(answer)
	if err != nil {
		fail(w, http.StatusInternalServerError, "the answer has no JSON")
		return
	}
	code := http.StatusOK
	if answer.GetOverallCode() == pb.RateLimitResponse_OVER_LIMIT {
		code = http.StatusTooManyRequests
	}
	send(w, code, "application/json", text)
}

// healthcheck answers as the reference does: OK until the server stops.
func (s *Server) healthcheck(w http.ResponseWriter, _ *http.Request) {
	if s.draining.Load() {
		answer(w, http.StatusServiceUnavailable, "the server stops")
		return
	}
	answer(w, http.StatusOK, "OK")
}
