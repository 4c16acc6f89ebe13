package websocketmw

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/headgate/headgate/nethttp"
)

// OnRefused has what the server's writer offers, and the guard answers if OnRefused has
// not: informational responses are not answers.
func TestOnRefused(t *testing.T) {
	for _, c := range []struct {
		name    string
		refused func(http.ResponseWriter)
		want    []int // the statuses that the client gets
		body    string
	}{
		{"only early hints", func(w http.ResponseWriter) { w.WriteHeader(http.StatusEarlyHints) }, []int{103, 429}, ""},
		{"early hints and a page", func(w http.ResponseWriter) {
			w.WriteHeader(http.StatusEarlyHints)
			http.Error(w, "later", http.StatusTooManyRequests)
		}, []int{103, 429}, "later\n"},
		{"a body without a status", func(w http.ResponseWriter) { io.WriteString(w, "page") }, []int{200}, "page"},
		{"a flush", func(w http.ResponseWriter) {
			if err := http.NewResponseController(w).Flush(); err != nil {
				t.Error(err)
			}
			w.(http.Flusher).Flush()
		}, []int{200}, ""},
		{"a hijacked connection", func(w http.ResponseWriter) {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			io.WriteString(conn, "HTTP/1.1 418 I'm a teapot\r\nContent-Length: 5\r\n\r\nshort")
		}, []int{418}, "short"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, 0, false, Config{OnRefused: func(w http.ResponseWriter, _ *http.Request, _ nethttp.Verdict) {
				c.refused(w)
			}}, http.NotFoundHandler())
			p := w.dial(handshakeText)
			for _, want := range c.want {
				if got := p.respond().StatusCode; got != want {
					t.Errorf("status %d, not %d", got, want)
				}
			}
			b, err := io.ReadAll(p.response.Body)
			if err != nil || c.body != "" && string(b) != c.body {
				t.Errorf("body %q, %v", b, err)
			}
		})
	}
}

// OnRefused is not offered what the server's writer does not have.
func TestOnRefusedWithoutHijack(t *testing.T) {
	w := newWorld(t, 0, false, Config{OnRefused: func(w http.ResponseWriter, _ *http.Request, _ nethttp.Verdict) {
		if _, ok := w.(http.Hijacker); ok {
			t.Error("a recorder can hijack")
		}
		if err := http.NewResponseController(w).Flush(); err == nil {
			t.Error("a writer that cannot flush did")
		}
	}}, http.NotFoundHandler())
	rec := httptest.NewRecorder()
	page := httptest.NewRequest("GET", "/", nil)
	if w.guard.Refuse(rec, page, w.guard.Check(page)); rec.Body.Len() != 0 || len(rec.Header()) != 0 {
		t.Error("an admitted request was refused")
	}
	v := w.guard.Check(upgradeRequest())
	w.guard.Refuse(struct{ http.ResponseWriter }{rec}, upgradeRequest(), v)
	if rec.Code != http.StatusTooManyRequests {
		t.Error(rec.Code)
	}
}
