package problem_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strconv"
	"testing"

	"github.com/headgate/headgate/internal/old/problem"
)

// Names of all characters that names may have come out of the document as they went in.
func TestQuotaExceeded(t *testing.T) {
	var all []byte
	for c := byte(' '); c <= '~'; c++ {
		all = append(all, c)
	}
	for _, names := range [][]string{{"api"}, {`a "b" \c`, "</script>"}, {string(all), " ", "~"}} {
		var got struct {
			Type     string
			Title    string
			Status   int
			Violated []string `json:"violated-policies"`
		}
		d := problem.QuotaExceeded(names...)
		if err := json.Unmarshal(d.Bytes(), &got); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got.Violated, names) || got.Status != 429 || got.Title != "Quota Exceeded" ||
			got.Type != "https://iana.org/assignments/http-problem-types#quota-exceeded" {
			t.Errorf("%+v, want the names %q", got, names)
		}
	}
}

func TestWrite(t *testing.T) {
	const body = `{"type":"about:blank","title":"Service Unavailable","status":503}`
	d := problem.Blank(503)
	if got := string(d.Bytes()); got != body {
		t.Errorf("%s, want %s", got, body)
	}
	for method, want := range map[string]string{"GET": body, "HEAD": ""} {
		w := httptest.NewRecorder()
		d.Write(w, httptest.NewRequest(method, "/", nil), make([]string, 3))
		if w.Code != 503 || w.Body.String() != want {
			t.Errorf("%s: %d %q, want 503 %q", method, w.Code, w.Body, want)
		}
		if want := (http.Header{
			"Content-Type":           {"application/problem+json"},
			"Content-Length":         {strconv.Itoa(len(body))},
			"X-Content-Type-Options": {"nosniff"},
		}); !reflect.DeepEqual(w.Header(), want) {
			t.Errorf("%s: %v, want %v", method, w.Header(), want)
		}
	}
}

// What a caller does with the copy, or with the values of the fields, changes no other
// response.
func TestNothingIsShared(t *testing.T) {
	d := problem.Blank(500)
	want := string(d.Bytes())
	clear(d.Bytes())
	w := httptest.NewRecorder()
	d.Write(w, httptest.NewRequest("GET", "/", nil), make([]string, 3))
	for _, values := range w.Header() {
		_ = append(values, "spoiled")
	}
	if got := string(d.Bytes()); got != want || w.Header().Get("Content-Length") != strconv.Itoa(len(want)) {
		t.Errorf("%s, %v", got, w.Header())
	}
}
