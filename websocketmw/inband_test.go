package websocketmw

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
	"github.com/headgate/headgate/websocketmw/internal/frames"
)

func withFieldsOf(fields string) string {
	return strings.Replace(handshakeText, "\r\n\r\n", "\r\n"+fields+"\r\n\r\n", 1)
}

func TestInBand(t *testing.T) {
	for _, secure := range []bool{false, true} {
		w := newWorld(t, 0, secure, Config{InBand: true}, http.NotFoundHandler())
		p := w.dial(withFieldsOf("Origin: https://a.example\r\nSec-WebSocket-Protocol: chat, other"))
		response := p.respond()
		if response.StatusCode != 101 || response.Header.Get("Sec-WebSocket-Accept") != "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" ||
			response.Header.Get("Sec-WebSocket-Protocol") != "chat" || response.Header.Get("RateLimit") != `"ws";r=0` {
			t.Error(response)
		}
		if got := p.closes(); !regexp.MustCompile(`^1013 limit "ws" is reached; retry in ([5-9]|10) s$`).MatchString(got) {
			t.Error(got)
		}
		p.send(masked(0x88, ""))
		if got := p.closes(); got != "error" {
			t.Error(got)
		}
		if _, granted, _ := w.store.counts(); granted != 0 {
			t.Error("it took a slot")
		}

		// Clients that are not browsers get a 429. An invalid protocol is not repeated.
		if got := w.open().response.StatusCode; got != 429 {
			t.Error(got)
		}
		p = w.dial(withFieldsOf("Origin: https://a.example\r\nSec-WebSocket-Protocol: no token"))
		if response := p.respond(); response.StatusCode != 101 || response.Header.Get("Sec-WebSocket-Protocol") != "" {
			t.Error(response)
		}
		p.Close()
	}
}

// Over their own rate, refusals are ordinary responses. One key does not use up what there is
// for others, whose limit it is; a limit of the service has no such share.
func TestInBandIsLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New(memstore.Config{})
		none, all := newSlots(t, store, "ws", 0), newSlots(t, store, "all", 0)
		user := func(r *http.Request) (string, error) { return r.Header.Get("User"), nil }
		guards := map[string]*Guard{}
		for name, rule := range map[string]nethttp.Rule{
			"user":    {Slots: none, Key: user},
			"service": {Slots: all, Key: keyfuncs.Everyone(), Service: true},
		} {
			g, err := New(Config{Rules: []nethttp.Rule{rule}, InBand: true})
			if err != nil {
				t.Fatal(err)
			}
			guards[name] = g
		}
		inBand := func(g *Guard, user string, tries int) (n int) {
			for range tries {
				client, server := net.Pipe()
				client.Close()
				rec, r := httptest.NewRecorder(), upgradeRequest("Origin", "https://a.example", "User", user)
				if g.Refuse(brokenWriter{rec, server}, r, g.Check(r)); rec.Code == http.StatusOK { // nothing was written
					n++
				}
			}
			return n
		}
		users := guards["user"]
		for _, name := range []string{"a", "b"} {
			if n := inBand(users, name, 300); n != inBandBurst {
				t.Errorf("%s: %d at once", name, n)
			}
		}
		time.Sleep(3 * time.Second)
		if n := inBand(users, "a", 300); n != 3 {
			t.Errorf("%d after 3 s", n)
		}
		total := 0
		for i := range 300 {
			total += inBand(users, fmt.Sprint(i), 1)
		}
		if total != inBandRate-3 {
			t.Errorf("%d for others", total)
		}
		if n := inBand(guards["service"], "", 300); n != inBandRate {
			t.Errorf("%d by a limit of the service", n)
		}
	})
}

func TestReasonsFit(t *testing.T) {
	long := strings.Repeat(`"`, 64)
	for service, want := range map[bool]string{false: fmt.Sprintf("limit %q is reached; retry in ", long), true: "not available; retry in "} {
		g := core.Must(New(Config{Rules: []nethttp.Rule{{
			Slots: newSlots(t, memstore.New(memstore.Config{}), long, 0), Key: keyfuncs.Everyone(), Service: service,
		}}}))
		got := closeReason(g.Check(upgradeRequest()))
		if n := len(frames.Close(1013, got)); n > 127 || !strings.HasPrefix(got, want) || service && !strings.HasSuffix(got, " s") {
			t.Errorf("%d bytes: %s", n, got)
		}
	}
}

// A brokenWriter is a writer whose connection cannot be hijacked if it is nil.
type brokenWriter struct {
	*httptest.ResponseRecorder

	conn net.Conn
}

func (b brokenWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	if b.conn == nil {
		return nil, nil, io.ErrClosedPipe
	}
	return b.conn, nil, nil
}

// A client that does not read or does not answer holds the connection for inBandTimeout.
func TestInBandTimesOut(t *testing.T) {
	for _, reads := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			g, err := New(Config{
				Rules:  []nethttp.Rule{{Slots: newSlots(t, memstore.New(memstore.Config{}), "ws", 0), Key: keyfuncs.Everyone()}},
				InBand: true,
			})
			if err != nil {
				t.Fatal(err)
			}
			client, server := net.Pipe()
			if reads {
				go io.Copy(io.Discard, client)
			}
			begin := time.Now()
			time.AfterFunc(time.Minute, func() { client.Close() }) // the test would hang
			r := upgradeRequest("Origin", "https://a.example")
			g.Refuse(&early{pipe: pipe{conn: server}}, r, g.Check(r))
			if took := time.Since(begin); took != inBandTimeout {
				t.Errorf("reads %v: it took %v", reads, took)
			}
			client.Close()
		})
	}
}

// If the connection cannot be hijacked, the refusal is an ordinary response; if it cannot be
// written to, there is none.
func TestInBandFails(t *testing.T) {
	w := newWorld(t, 0, false, Config{InBand: true}, http.NotFoundHandler())
	r := upgradeRequest("Origin", "https://a.example")
	client, server := net.Pipe()
	client.Close()
	for _, c := range []struct {
		conn net.Conn
		want int
	}{{nil, 429}, {server, 200}} {
		rec := httptest.NewRecorder() // whose Code is 200 if nothing is written
		w.guard.Refuse(brokenWriter{rec, c.conn}, r, w.guard.Check(r))
		if rec.Code != c.want {
			t.Errorf("%d, not %d", rec.Code, c.want)
		}
	}
}
