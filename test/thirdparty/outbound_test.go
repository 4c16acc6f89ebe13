package thirdparty

import (
	"encoding/binary"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/headgate/headgate/websocketmw"
)

// A client that does not read is closed with 1008, whatever the library and the framework, and
// gets what was written before, up to the end of a frame, when it reads at last.
func TestSlowClients(t *testing.T) {
	t.Parallel()
	message := strings.Repeat("m", 16<<10)
	for _, l := range libraries {
		for _, m := range mounts {
			for _, secure := range []bool{false, true} {
				t.Run(l.name+"/"+m.name, func(t *testing.T) {
					t.Parallel()
					var slow atomic.Bool
					h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						l.upgrade(w, r, func(s socket) {
							for !slow.Load() && s.Write(message) == nil {
							}
							for {
								if _, err := s.Read(); err != nil {
									s.Close()
									return
								}
							}
						})
					})
					told := make(chan struct{})
					s := newSite(t, m, h, secure, websocketmw.Config{
						Outbound: websocketmw.Outbound{MaxUnsent: 64 << 10},
						Notify: func(_ *websocketmw.Socket, e websocketmw.Event) {
							if e.Kind == websocketmw.EventSlow {
								slow.Store(true)
								close(told)
							}
						},
					})
					c, response := s.call()
					if response == nil || response.StatusCode != http.StatusSwitchingProtocols {
						t.Fatal(response)
					}
					<-told
					for {
						op, payload, err := c.read()
						if err != nil {
							t.Fatal(err)
						}
						if op == 0x8 {
							if code := binary.BigEndian.Uint16([]byte(payload)); code != 1008 {
								t.Error(code)
							}
							break
						}
						if payload != message {
							t.Fatalf("a message of %d bytes", len(payload))
						}
					}
					if err := c.write(0x88, "\x03\xf0"); err != nil {
						t.Error(err)
					}
					<-s.closed
					s.balanced()
				})
			}
		}
	}
}
