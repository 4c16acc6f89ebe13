package gorillaws_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gorilla/websocket"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
	"github.com/headgate/headgate/websocketmw"
	"github.com/headgate/headgate/websocketmw/gorillaws"
)

func TestHandler(t *testing.T) {
	slots, err := core.NewSlots(memstore.New(memstore.Config{}), "ws", 1)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{}, 10)
	guard, err := websocketmw.New(websocketmw.Config{
		Rules:  []nethttp.Rule{{Slots: slots, Key: keyfuncs.RemoteAddr()}},
		Notify: func(*websocketmw.Socket, websocketmw.Event) { ended <- struct{}{} },
	})
	if err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{}, 1)
	server := httptest.NewServer(gorillaws.Handler(guard, nil, func(conn *websocket.Conn, r *http.Request) {
		go func() {
			<-r.Context().Done()
			over <- struct{}{}
		}()
		conn.WriteMessage(websocket.TextMessage, []byte("hello"))
		conn.ReadMessage()
		if conn.Close(); r.Context().Err() == nil { // before the handler returns
			t.Error("the context outlives the socket")
		}
	}))
	defer server.Close()
	url := "ws" + strings.TrimPrefix(server.URL, "http")

	conn, response, err := websocket.DefaultDialer.Dial(url, nil)
	if err != nil || response.Header.Get("RateLimit") != `"ws";r=0` {
		t.Fatal(response, err)
	}
	if _, message, err := conn.ReadMessage(); err != nil || string(message) != "hello" {
		t.Errorf("%q, %v", message, err)
	}
	if _, response, _ := websocket.DefaultDialer.Dial(url, nil); response == nil || response.StatusCode != 429 {
		t.Errorf("the second socket: %v", response)
	}
	conn.Close()
	<-over
	<-ended

	// What the upgrader refuses holds nothing.
	_, response, _ = websocket.DefaultDialer.Dial(url, http.Header{"Origin": {"https://elsewhere.example"}})
	if response == nil || response.StatusCode != 403 {
		t.Errorf("another origin: %v", response)
	}
	<-ended
	if guard.Len() != 0 {
		t.Errorf("%d sockets", guard.Len())
	}

	// Behind no guard it upgrades all the same.
	bare := httptest.NewServer(gorillaws.Upgrade(&websocket.Upgrader{}, func(conn *websocket.Conn, _ *http.Request) {
		conn.WriteMessage(websocket.TextMessage, nil)
	}))
	defer bare.Close()
	if conn, _, err = websocket.DefaultDialer.Dial("ws"+strings.TrimPrefix(bare.URL, "http"), nil); err != nil {
		t.Fatal(err)
	}
	conn.Close()
}

func TestNil(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	gorillaws.Handler(nil, nil, nil)
}
