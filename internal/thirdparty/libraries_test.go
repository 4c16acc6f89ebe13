package thirdparty

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"

	coder "github.com/coder/websocket"
	"github.com/gobwas/ws"
	"github.com/gobwas/ws/wsutil"
	gorillaws "github.com/gorilla/websocket"
	"github.com/lxzan/gws"
	xnet "golang.org/x/net/websocket"
)

// A library upgrades, and calls serve with the socket.
type library struct {
	name    string
	closes  bool // when serve returns
	leaks   bool // what is forgotten: a goroutine reads it, or a finalizer hangs in a cycle
	upgrade func(w http.ResponseWriter, r *http.Request, serve func(socket))
}

var libraries = []library{
	{"gorilla", false, false, func(w http.ResponseWriter, r *http.Request, serve func(socket)) {
		var u gorillaws.Upgrader
		if c, err := u.Upgrade(w, r, nil); err == nil {
			serve(gorillaSocket{c})
		}
	}},
	{"coder", false, true, func(w http.ResponseWriter, r *http.Request, serve func(socket)) {
		if c, err := coder.Accept(w, r, nil); err == nil {
			serve(coderSocket{c})
		}
	}},
	{"gobwas", false, false, func(w http.ResponseWriter, r *http.Request, serve func(socket)) {
		// What it refuses it does not close.
		if c, rw, _, err := ws.UpgradeHTTP(r, w); err == nil {
			serve(gobwasSocket{c, rw})
		}
	}},
	{"x-net", true, false, func(w http.ResponseWriter, r *http.Request, serve func(socket)) {
		xnet.Server{Handler: func(c *xnet.Conn) { serve(xnetSocket{c}) }}.ServeHTTP(w, r)
	}},
	{"gws", false, true, func(w http.ResponseWriter, r *http.Request, serve func(socket)) {
		events := &gwsSocket{messages: make(chan string, 100), over: make(chan struct{})}
		u := gws.NewUpgrader(events, &gws.ServerOption{Authorize: func(r *http.Request, _ gws.SessionStorage) bool {
			return !strings.Contains(r.Header.Get("Origin"), "elsewhere")
		}})
		c, err := u.Upgrade(w, r)
		if err != nil {
			return
		}
		events.conn = c
		go c.ReadLoop()
		serve(events)
	}},
}

type gorillaSocket struct{ *gorillaws.Conn }

func (s gorillaSocket) Read() (string, error) {
	_, b, err := s.ReadMessage()
	return string(b), err
}

func (s gorillaSocket) Write(m string) error { return s.WriteMessage(gorillaws.TextMessage, []byte(m)) }

type coderSocket struct{ *coder.Conn }

func (s coderSocket) Read() (string, error) {
	_, b, err := s.Conn.Read(context.Background())
	return string(b), err
}

func (s coderSocket) Write(m string) error {
	return s.Conn.Write(context.Background(), coder.MessageText, []byte(m))
}

func (s coderSocket) Close() error { return s.CloseNow() }

type gobwasSocket struct {
	net.Conn

	rw *bufio.ReadWriter
}

func (s gobwasSocket) Read() (string, error) {
	b, err := wsutil.ReadClientText(struct {
		io.Reader
		io.Writer
	}{s.rw, s.Conn})
	return string(b), err
}

func (s gobwasSocket) Write(m string) error { return wsutil.WriteServerText(s.Conn, []byte(m)) }

type xnetSocket struct{ *xnet.Conn }

func (s xnetSocket) Read() (m string, err error) {
	err = xnet.Message.Receive(s.Conn, &m)
	return m, err
}

func (s xnetSocket) Write(m string) error { return xnet.Message.Send(s.Conn, m) }

// A gwsSocket waits for what its connection's loop hands over.
type gwsSocket struct {
	gws.BuiltinEventHandler

	conn     *gws.Conn
	messages chan string
	over     chan struct{}
}

func (s *gwsSocket) OnMessage(_ *gws.Conn, m *gws.Message) { s.messages <- m.Data.String() }

func (s *gwsSocket) OnClose(*gws.Conn, error) { close(s.over) }

func (s *gwsSocket) Read() (string, error) {
	select {
	case m := <-s.messages:
		return m, nil
	case <-s.over:
		return "", errors.New("over")
	}
}

func (s *gwsSocket) Write(m string) error { return s.conn.WriteString(m) }

func (s *gwsSocket) Close() error { return s.conn.NetConn().Close() }
