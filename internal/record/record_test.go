package record

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// plain hides all but the methods of a ResponseWriter.
type plain struct{ http.ResponseWriter }

// hijackable is a writer whose connection can be hijacked, or not.
type hijackable struct {
	http.ResponseWriter

	err error
}

func (h hijackable) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, h.err }

// notifies is a writer that says when the client has gone.
type notifies struct{ *httptest.ResponseRecorder }

func (notifies) CloseNotify() <-chan bool { return nil }

func TestRecorder(t *testing.T) {
	broken := errors.New("broken")
	for _, test := range []struct {
		name     string
		within   func(w http.ResponseWriter) http.ResponseWriter
		do       func(w http.ResponseWriter)
		status   int
		written  int64
		hijacked bool
	}{
		{"nothing", nil, func(http.ResponseWriter) {}, 0, 0, false},
		{"a status", nil, func(w http.ResponseWriter) { w.WriteHeader(404); w.WriteHeader(200) }, 404, 0, false},
		{"an informational one", nil, func(w http.ResponseWriter) { w.WriteHeader(103) }, 0, 0, false},
		{"101", nil, func(w http.ResponseWriter) { w.WriteHeader(101) }, 101, 0, false},
		{"a body", nil, func(w http.ResponseWriter) { w.Write([]byte("hello")); io.WriteString(w, "you") }, 200, 8, false},
		{"a copy", nil, func(w http.ResponseWriter) { io.Copy(w, strings.NewReader("hello")) }, 200, 5, false},
		{"a flush", nil, func(w http.ResponseWriter) { w.(http.Flusher).Flush() }, 200, 0, false},
		{"a flush that nothing can", func(w http.ResponseWriter) http.ResponseWriter { return plain{w} }, func(w http.ResponseWriter) {
			http.NewResponseController(w).Flush()
		}, 0, 0, false},
		{"a hijack", func(w http.ResponseWriter) http.ResponseWriter { return hijackable{w, nil} }, func(w http.ResponseWriter) {
			w.(http.Hijacker).Hijack()
		}, 0, 0, true},
		{"a hijack that fails", func(w http.ResponseWriter) http.ResponseWriter { return hijackable{w, broken} }, func(w http.ResponseWriter) {
			w.(http.Hijacker).Hijack()
		}, 0, 0, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			var within http.ResponseWriter = httptest.NewRecorder()
			if test.within != nil {
				within = test.within(within)
			}
			rec := &Recorder{ResponseWriter: within}
			test.do(rec.Writer())
			if rec.Status != test.status || rec.Written != test.written || rec.Hijacked != test.hijacked || rec.Responded() != (test.status != 0 || test.hijacked) {
				t.Errorf("%+v", rec)
			}
			want := [2]int{http.StatusInternalServerError, http.StatusOK}
			if test.status != 0 {
				want = [2]int{test.status, test.status}
			}
			if got := [2]int{rec.Final(false), rec.Final(true)}; got != want {
				t.Errorf("final %v, want %v", got, want)
			}
		})
	}
}

// Handlers see the methods that the writer within has, and no others.
func TestWriterHasWhatIsWithin(t *testing.T) {
	flushes := httptest.NewRecorder()
	for _, test := range []struct {
		name            string
		within          http.ResponseWriter
		flushes, hijack bool
	}{
		{"neither", plain{flushes}, false, false},
		{"Flush", flushes, true, false},
		{"Hijack", hijackable{plain{flushes}, nil}, false, true},
		{"both", struct {
			http.ResponseWriter
			http.Flusher
			http.Hijacker
		}{flushes, flushes, hijackable{}}, true, true},
		{"Flush and CloseNotify", notifies{flushes}, true, false},
		{"all", struct {
			notifies
			http.Hijacker
		}{notifies{flushes}, hijackable{}}, true, true},
		{"Hijack, deeper", &Recorder{ResponseWriter: hijackable{plain{flushes}, nil}}, false, true},
	} {
		w := (&Recorder{ResponseWriter: test.within}).Writer()
		_, canFlush := w.(http.Flusher)
		_, canHijack := w.(http.Hijacker)
		if canFlush != test.flushes || canHijack != test.hijack {
			t.Errorf("%s: Flush %v, Hijack %v", test.name, canFlush, canHijack)
		}
		_, want := test.within.(closeNotifier)
		if _, can := w.(closeNotifier); can != want {
			t.Errorf("%s: CloseNotify %v", test.name, can)
		}
	}
}
