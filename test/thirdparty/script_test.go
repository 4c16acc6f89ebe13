package thirdparty

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/websocketmw"
)

// A script is a connection on which a client has sent everything before the server reads, and
// then only closes.
type script struct {
	early string // that the server reads with the handshake
	sent  []byte
	cuts  []int // lengths of what each Read returns, repeated; none: as much as fits

	mu     sync.Mutex
	reads  int
	got    bytes.Buffer // what the server wrote
	closed bool
}

func (s *script) Read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0, net.ErrClosed
	}
	if len(s.sent) == 0 {
		return 0, io.EOF
	}
	n := min(len(p), len(s.sent))
	if len(s.cuts) > 0 {
		n = min(n, max(1, s.cuts[s.reads%len(s.cuts)]))
	}
	s.reads++
	copy(p, s.sent[:n])
	s.sent = s.sent[n:]
	return n, nil
}

func (s *script) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0, net.ErrClosed
	}
	return s.got.Write(p)
}

func (s *script) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return nil
}

func (s *script) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (s *script) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (s *script) SetDeadline(time.Time) error      { return nil }
func (s *script) SetReadDeadline(time.Time) error  { return nil }
func (s *script) SetWriteDeadline(time.Time) error { return nil }

// answers returns how many frames of an opcode the server has written, and the code of its
// Close frame, or 0.
func (s *script) answers(op byte) (n int, code uint16) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, frames, _ := strings.Cut(s.got.String(), "\r\n\r\n")
	for len(frames) >= 2 {
		size := 2
		length := int(frames[1])
		switch length {
		case 126:
			size, length = 4, int(binary.BigEndian.Uint16([]byte(frames[2:])))
		case 127:
			size, length = 10, int(binary.BigEndian.Uint64([]byte(frames[2:])))
		}
		if frames[0]&0xf == op {
			n++
		}
		if frames[0]&0xf == 8 && length >= 2 && code == 0 {
			code = binary.BigEndian.Uint16([]byte(frames[size:]))
		}
		frames = frames[size+length:]
	}
	return n, code
}

// A stage is a ResponseWriter whose connection is a script.
type stage struct {
	*httptest.ResponseRecorder

	script *script
}

func (s *stage) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	if s.Code == http.StatusSwitchingProtocols { // coder writes it before
		_, _ = s.script.Write([]byte("HTTP/1.1 101 Switching Protocols\r\n\r\n"))
	}
	r := bufio.NewReader(io.MultiReader(strings.NewReader(s.script.early), s.script))
	_, _ = r.Peek(len(s.script.early))
	return s.script, bufio.NewReadWriter(r, bufio.NewWriter(s.script)), nil
}

// A heard is what a library delivered to a handler.
type heard struct {
	messages, bytes int64
	text            []string
}

// play plays the script to a library behind wrap, until the handler has read all there is.
func (l library) play(s *script, wrap func(http.Handler) http.Handler) heard {
	var h heard
	r := httptest.NewRequest(http.MethodGet, "http://example.com/ws", nil)
	for name, value := range map[string]string{
		"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13",
		"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==", "Origin": "http://example.com",
	} {
		r.Header.Set(name, value)
	}
	wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		l.upgrade(w, r, func(c socket) {
			defer c.Close()
			for {
				m, err := c.Read()
				if err != nil {
					return
				}
				h.messages++
				h.bytes += int64(len(m))
				h.text = append(h.text, m)
			}
		})
	})).ServeHTTP(&stage{httptest.NewRecorder(), s}, r)
	return h
}

// sentFrame returns a frame of a client.
func sentFrame(first byte, payload string) string {
	return longFrame(first, uint64(len(payload)), payload)
}

// longFrame returns a frame of a client that claims a length.
func longFrame(first byte, length uint64, payload string) string {
	b := []byte{first, 0x80}
	switch {
	case length < 126:
		b[1] |= byte(length)
	case length < 1<<16:
		b[1] |= 126
		b = binary.BigEndian.AppendUint16(b, uint16(length))
	default:
		b[1] |= 127
		b = binary.BigEndian.AppendUint64(b, length)
	}
	return string(b) + "\x00\x00\x00\x00" + payload // a mask of zeros changes nothing
}

// guard returns a guard with limits on what clients send.
func guard(t testing.TB, config websocketmw.Config) *websocketmw.Guard {
	t.Helper()
	config.Rules = []websocketmw.Rule{{Slots: core.NewSlots(new(core.MemoryStore), "ws", core.NoLimit), Key: keyfuncs.Everyone()}}
	g, err := websocketmw.New(config)
	if err != nil {
		t.Fatal(err)
	}
	return g
}
