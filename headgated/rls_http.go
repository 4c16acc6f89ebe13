package headgated

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"unicode/utf8"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
)

// inJSON answers a request of Envoy's rate limit service in JSON: with 200, or with 429 if it is refused.
func (s *Server) inJSON(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		fail(w, http.StatusRequestEntityTooLarge, "the body is too large")
		return
	}
	var q pb.RateLimitRequest
	if err != nil || requestOf(body, &q) != nil {
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
	text, err := textOf(answer)
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

// Multipliers of units are in JSON too, though the descriptions of messages do not have them: see multiplier.
const (
	jsonMultiplier = "unitMultiplier"
	nameMultiplier = "unit_multiplier" // as JSON of protobuf takes names too
)

// requestOf reads a request in JSON.
func requestOf(body []byte, q *pb.RateLimitRequest) error {
	if !bytes.Contains(body, []byte("ultiplier")) {
		return protojson.Unmarshal(body, q)
	}
	var request map[string]any
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	if err := d.Decode(&request); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) || !utf8.Valid(body) { // as protojson
		return errMultiplier
	}
	several := make(map[int]uint32)
	descriptors, _ := request[wordDescriptors].([]any)
	for i := range descriptors {
		limit := child(descriptors[i], "limit")
		for _, name := range [...]string{jsonMultiplier, nameMultiplier} {
			if v := limit[name]; v != nil {
				n, err := strconv.ParseUint(fmt.Sprint(v), 10, 32)
				if err != nil {
					return err
				}
				several[i] = uint32(n)
			}
			delete(limit, name)
		}
	}
	body, err := json.Marshal(request)
	if err == nil {
		err = protojson.Unmarshal(body, q)
	}
	for i, n := range several {
		if err == nil {
			setMultiplier(q.GetDescriptors()[i].GetLimit(), ofOverride, n)
		}
	}
	return err
}

// textOf returns an answer in JSON.
func textOf(r *pb.RateLimitResponse) ([]byte, error) {
	text, err := protojson.Marshal(r)
	if err != nil {
		return nil, err
	}
	var answer map[string]any
	for i, st := range r.GetStatuses() {
		n, err := multiplier(st.GetCurrentLimit(), ofLimit)
		if err != nil || n == 1 {
			continue
		}
		if answer == nil {
			if err := json.Unmarshal(text, &answer); err != nil {
				return nil, err
			}
		}
		statuses, _ := answer["statuses"].([]any)
		child(statuses[i], "currentLimit")[jsonMultiplier] = n
	}
	if answer == nil {
		return text, nil
	}
	return json.Marshal(answer)
}

// child returns an object of an object in JSON, or nil.
func child(of any, name string) map[string]any {
	object, _ := of.(map[string]any)
	inner, _ := object[name].(map[string]any)
	return inner
}

// healthcheck answers as the reference does: OK until the server stops.
func (s *Server) healthcheck(w http.ResponseWriter, _ *http.Request) {
	if s.draining.Load() {
		answer(w, http.StatusServiceUnavailable, "the server stops")
		return
	}
	answer(w, http.StatusOK, "OK")
}
