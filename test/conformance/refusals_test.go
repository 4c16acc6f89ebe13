package conformance

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	echo4 "github.com/labstack/echo/v4"
	echo5 "github.com/labstack/echo/v5"

	"github.com/headgate/headgate/contrib/echov5mw"
	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/echomw"
	"github.com/headgate/headgate/ginmw"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
	"github.com/headgate/headgate/test/conformance/scenes"
	"github.com/headgate/headgate/websocketmw"
)

// upgraded is all that a client gets of a refusal which upgrades, says why in a Close frame, and closes.
const upgraded = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n\x88\x02\x03\xf0"

// upgrade answers as upgraded.
func upgrade(conn net.Conn, _ *bufio.ReadWriter, err error) {
	if err == nil {
		_, err = io.WriteString(conn, upgraded)
	}
	if err == nil {
		err = conn.Close()
	}
	if err != nil {
		panic(err)
	}
}

// A way is how OnRefused answers.
type way struct {
	name   string
	answer func(w http.ResponseWriter, r *http.Request)
	status int    // 0: the socket is upgraded
	body   string // of a GET; "document" is the problem document
}

// ways are those of net/http, which each framework has.
var ways = []way{
	{"nothing", func(http.ResponseWriter, *http.Request) {}, 429, "document"},
	{"a status", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(418) }, 418, ""},
	{"a body", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "wait") }, 200, "wait"},
	{"a page", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "wait", 418) }, 418, "wait\n"},
	{"a redirect", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/busy", 303) }, 303, `<a href="/busy">See Other</a>.` + "\n\n"},
	{"an upgrade", func(w http.ResponseWriter, _ *http.Request) { upgrade(http.NewResponseController(w).Hijack()) }, 0, ""},
	{"an upgrade by the writer itself", func(w http.ResponseWriter, _ *http.Request) { upgrade(w.(http.Hijacker).Hijack()) }, 0, ""},
}

// ginWays use the context of Gin, ways4 and ways5 that of Echo v4 and v5.
func ginWays() []way {
	by := func(name string, status int, body string, answer func(c *gin.Context)) way {
		return way{"Gin's " + name, func(_ http.ResponseWriter, r *http.Request) { answer(ginmw.Context(r)) }, status, body}
	}
	wait := gin.H{"wait": true}
	return []way{
		by("JSON", 418, `{"wait":true}`, func(c *gin.Context) { c.JSON(418, wait) }),
		by("JSON with 200", 200, `{"wait":true}`, func(c *gin.Context) { c.JSON(200, wait) }),
		by("AbortWithStatusJSON", 418, `{"wait":true}`, func(c *gin.Context) { c.AbortWithStatusJSON(418, wait) }),
		by("String", 418, "wait", func(c *gin.Context) { c.String(418, "wait") }),
		by("Redirect", 303, `<a href="/busy">See Other</a>.`+"\n\n", func(c *gin.Context) { c.Redirect(303, "/busy") }),
		by("Status", 418, "", func(c *gin.Context) { c.Status(418) }),
		by("Status of 200", 200, "", func(c *gin.Context) { c.Status(200) }),
		by("AbortWithStatus", 418, "", func(c *gin.Context) { c.AbortWithStatus(418) }),
		by("AbortWithError", 418, "", func(c *gin.Context) { _ = c.AbortWithError(418, errors.New("wait")) }),
		by("Abort", 429, "document", func(c *gin.Context) { c.Abort() }),
		by("error", 429, "document", func(c *gin.Context) { _ = c.Error(errors.New("wait")) }),
		by("upgrade", 0, "", func(c *gin.Context) { upgrade(c.Writer.Hijack()) }),
	}
}

func ways4() []way {
	by := func(name string, status int, body string, answer func(c echo4.Context) error) way {
		return way{"Echo's " + name, func(_ http.ResponseWriter, r *http.Request) { _ = answer(echomw.Context(r)) }, status, body}
	}
	wait := echo4.Map{"wait": true}
	return []way{
		by("JSON", 418, `{"wait":true}`+"\n", func(c echo4.Context) error { return c.JSON(418, wait) }),
		by("JSON with 200", 200, `{"wait":true}`+"\n", func(c echo4.Context) error { return c.JSON(200, wait) }),
		by("String", 418, "wait", func(c echo4.Context) error { return c.String(418, "wait") }),
		by("Redirect", 303, "", func(c echo4.Context) error { return c.Redirect(303, "/busy") }),
		by("NoContent", 418, "", func(c echo4.Context) error { return c.NoContent(418) }),
		by("Error", 418, `{"message":"wait"}`+"\n", func(c echo4.Context) error { c.Error(echo4.NewHTTPError(418, "wait")); return nil }),
		by("error that is only returned", 429, "document", func(echo4.Context) error { return echo4.NewHTTPError(418, "wait") }),
		by("upgrade", 0, "", func(c echo4.Context) error { upgrade(c.Response().Hijack()); return nil }),
		by("upgrade by a controller", 0, "", func(c echo4.Context) error { upgrade(http.NewResponseController(c.Response()).Hijack()); return nil }),
	}
}

func ways5() []way {
	by := func(name string, status int, body string, answer func(c *echo5.Context) error) way {
		return way{"Echo's " + name, func(_ http.ResponseWriter, r *http.Request) { _ = answer(echov5mw.Context(r)) }, status, body}
	}
	wait := map[string]any{"wait": true}
	return []way{
		by("JSON", 418, `{"wait":true}`+"\n", func(c *echo5.Context) error { return c.JSON(418, wait) }),
		by("JSON with 200", 200, `{"wait":true}`+"\n", func(c *echo5.Context) error { return c.JSON(200, wait) }),
		by("String", 418, "wait", func(c *echo5.Context) error { return c.String(418, "wait") }),
		by("Redirect", 303, "", func(c *echo5.Context) error { return c.Redirect(303, "/busy") }),
		by("NoContent", 418, "", func(c *echo5.Context) error { return c.NoContent(418) }),
		by("error that is only returned", 429, "document", func(*echo5.Context) error { return echo5.NewHTTPError(418, "wait") }),
		by("upgrade", 0, "", func(c *echo5.Context) error { upgrade(c.Response().(http.Hijacker).Hijack()); return nil }),
		by("upgrade by a controller", 0, "", func(c *echo5.Context) error { upgrade(http.NewResponseController(c.Response()).Hijack()); return nil }),
	}
}

// A journal is what servers and frameworks log.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

func (j *journal) take() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	text := j.text.String()
	j.text.Reset()
	return text
}

// However a refusal is answered, the client gets one body, one status and the fields, and nothing is logged.
func TestWaysToRefuse(t *testing.T) {
	journal := new(journal)
	gin.SetMode(gin.DebugMode) // in which it tells of statuses that are overridden
	writer := gin.DefaultWriter
	gin.DefaultWriter = journal
	defer func() {
		gin.DefaultWriter = writer
		gin.SetMode(gin.ReleaseMode)
	}()
	for framework, own := range map[string][]way{"nethttp": nil, "chi": nil, "gin": ginWays(), "echo": ways4(), "echov5": ways5()} {
		for _, way := range slices.Concat(ways, own) {
			for kind, guard := range refusing(t, way) {
				h := mounts[framework](guard, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the handler ran") }))
				switch e := h.(type) {
				case *echo4.Echo:
					e.Logger.SetOutput(journal)
				case *echo5.Echo:
					e.Logger = slog.New(slog.NewTextHandler(journal, nil))
				}
				ended := make(chan struct{}, 1)
				server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					defer func() { ended <- struct{}{} }()
					h.ServeHTTP(w, r)
				}))
				server.Config.ErrorLog = log.New(journal, "", 0)
				server.Start()
				_ = journal.take() // what Gin says of its routes
				methods := []string{"GET", "HEAD", "POST"}
				if kind == "sockets" { // others are no upgrades
					methods = methods[:1]
				}
				for _, method := range methods {
					name := fmt.Sprintf("%s, %s, %s, %s", framework, way.name, kind, method)
					text := everything(t, server.Listener.Addr().String(), method, kind == "sockets")
					<-ended
					way.check(t, name, method, text)
					if said := journal.take(); said != "" {
						t.Errorf("%s: logged %s", name, said)
					}
				}
				server.Close()
			}
		}
	}
}

// refusing are guards that refuse everything in a way.
func refusing(t *testing.T, way way) map[string]scenes.Guard {
	store := new(core.MemoryStore)
	onRefused := func(w http.ResponseWriter, r *http.Request, _ *nethttp.Verdict) { way.answer(w, r) }
	rates, err := nethttp.New(nethttp.Config{
		Rates: []nethttp.Rate{{Limiter: core.NewLimiter(store, "closed", core.SlidingLog(1, time.Hour)), Key: keyfuncs.Everyone()}}, OnRefused: onRefused,
	})
	if err != nil {
		t.Fatal(err)
	}
	rates.Handler(http.NotFoundHandler()).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
	sockets, err := websocketmw.New(websocketmw.Config{
		Rules: []websocketmw.Rule{{Slots: core.NewSlots(store, "closed", 0), Key: keyfuncs.Everyone()}}, OnRefused: onRefused,
	})
	if err != nil {
		t.Fatal(err)
	}
	return map[string]scenes.Guard{"requests": rates, "sockets": sockets}
}

// everything returns all that a server sends.
func everything(t *testing.T, address, method string, upgrade bool) string {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fields := "Connection: close\r\n"
	if upgrade {
		fields = "Connection: Upgrade, close\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
	}
	fmt.Fprintf(conn, "%s / HTTP/1.1\r\nHost: a\r\n%s\r\n", method, fields)
	text, err := io.ReadAll(conn)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func (way *way) check(t *testing.T, name, method, text string) {
	t.Helper()
	if way.status == 0 {
		if text != upgraded {
			t.Errorf("%s: %q", name, text)
		}
		return
	}
	rest := bufio.NewReader(strings.NewReader(text))
	response, err := http.ReadResponse(rest, httptest.NewRequest(method, "/", nil))
	if err != nil {
		t.Fatalf("%s: %v in %q", name, err, text)
	}
	body, err := io.ReadAll(response.Body)
	more, _ := io.ReadAll(rest)
	if err != nil || len(more) > 0 {
		t.Errorf("%s: %v, and %q after the response", name, err, more)
	}
	fits := string(body) == way.body
	switch {
	case method == "HEAD":
		fits = len(body) == 0
	case way.body == "document":
		fits = strings.Count(string(body), "violated-policies") == 1 && strings.Count(string(body), "{") == 1
	case method == "POST" && way.status == 303:
		fits = len(body) == 0
	}
	if !fits || response.StatusCode != way.status {
		t.Errorf("%s: %d %q", name, response.StatusCode, body)
	}
	if response.Header.Get("RateLimit") == "" || response.Header.Get("Retry-After") == "" || response.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("%s: %v", name, response.Header)
	}
}
