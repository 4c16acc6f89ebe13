package e2e

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/gorilla/websocket"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/websocketmw"
)

// reasonsPage opens a socket for each of some paths, and keeps what the browser says of its end.
const reasonsPage = `<!doctype html><script>
const ends = {};
function dial(path, name) {
	const socket = new WebSocket("ws://" + location.host + path);
	socket.onopen = () => { for (let i = 0; i < 5; i++) socket.send("hello"); ends[name] ??= "open"; };
	socket.onclose = (e) => { ends[name] = e.code + " " + e.reason + (e.wasClean ? "" : ", not clean"); };
}
</script>`

// A script in a browser sees the code and the reason for which the guard closes its socket.
func TestReasons(t *testing.T) {
	ctx := browser(t)
	away, err := redisstore.Open("redis://127.0.0.1:1", redisstore.Config{Failure: redisstore.FailClosed})
	if err != nil {
		t.Fatal(err)
	}
	defer away.Client().Close()
	limit := func(s core.Store, units int64) []websocketmw.Inbound {
		return []websocketmw.Inbound{{Limiter: core.NewLimiter(s, "sent", core.SlidingLog(units, time.Hour))}}
	}
	memory := new(core.MemoryStore)
	guards, slots := make(map[string]*websocketmw.Guard), make(map[string]*core.Slots)
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		fmt.Fprint(w, reasonsPage)
	})
	for path, config := range map[string]websocketmw.Config{
		"/evicted":  {Rules: []websocketmw.Rule{{WhenFull: websocketmw.EvictOldest}}},
		"/idle":     {MaxIdle: time.Second},
		"/old":      {MaxAge: time.Second},
		"/messages": {Messages: limit(memory, 3)},
		"/bytes":    {Bytes: limit(memory, 12)},
		"/away":     {Messages: limit(away, 3)},
		"/banned":   {},
		"/shutdown": {},
	} {
		if config.Rules == nil {
			config.Rules = make([]websocketmw.Rule, 1)
		}
		slots[path] = core.NewSlots(memory, path, 1)
		config.Rules[0].Slots, config.Rules[0].Key = slots[path], keyfuncs.Everyone()
		if guards[path], err = websocketmw.New(config); err != nil {
			t.Fatal(err)
		}
		mux.Handle(path, guards[path].Handler(http.HandlerFunc(readAll)))
	}
	server := httptest.NewServer(mux)
	defer server.Close()

	run(ctx, t, chromedp.Navigate(server.URL))
	for path := range guards {
		run(ctx, t, chromedp.Evaluate(fmt.Sprintf(`dial(%q, %[1]q)`, path), nil))
	}
	opened := time.Now()
	run(ctx, t, until(`ends["/banned"] === "open" && ends["/shutdown"] === "open" && ends["/evicted"] === "open"`))
	if n, err := guards["/banned"].CloseAll(ctx, slots["/banned"], "everyone", 4001, "banned: süß"); n != 1 || err != nil {
		t.Error(n, err)
	}
	if err := guards["/shutdown"].Shutdown(ctx); err != nil {
		t.Error(err)
	}
	<-time.After(time.Until(opened.Add(11 * time.Second))) // then the first may be evicted
	run(ctx, t,
		chromedp.Evaluate(`dial("/evicted", "newcomer")`, nil),
		until(`ends["/evicted"] !== "open" && ends["newcomer"] === "open"`),
		until(`ends["/idle"] !== "open" && ends["/old"] !== "open"`),
	)
	var ends map[string]string
	run(ctx, t, chromedp.Evaluate(`ends`, &ends))
	for name, want := range map[string]string{
		"/evicted":  "1008 another socket has taken the place of this one",
		"/idle":     "1001 nothing was received for too long",
		"/old":      "1001 the socket is too old; connect again",
		"/messages": `1008 over the limit "sent"`,
		"/bytes":    `1008 over the limit "sent"`,
		"/away":     "1013 try again later",
		"/banned":   "4001 banned: süß",
		"/shutdown": "1001 the server is shutting down",
		"newcomer":  "open",
	} {
		if ends[name] != want {
			t.Errorf("%s: %q, not %q", name, ends[name], want)
		}
	}
}

func readAll(w http.ResponseWriter, r *http.Request) {
	c, err := new(websocket.Upgrader).Upgrade(w, r, nil)
	if err != nil {
		return
	}
	defer c.Close()
	for err == nil {
		_, _, err = c.ReadMessage()
	}
}
