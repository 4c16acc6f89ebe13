package websocketmw

import (
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestEventKinds(t *testing.T) {
	for kind, want := range map[EventKind]string{
		EventClosed: "closed", EventIdle: "idle", EventAged: "aged", EventLost: "lost", EventShed: "shed", EventForgotten: "forgotten", EventOver: "over",
		EventInvalid: "invalid", EventEvicted: "evicted", EventSlow: "slow", EventSlow + 1: "unknown",
	} {
		if got := kind.String(); got != want {
			t.Errorf("%d is %q, not %q", kind, got, want)
		}
	}
}

// EventClosed waits for the event that is being told, in whose callback the socket may end. Its slots do
// not wait.
func TestClosedIsToldLast(t *testing.T) {
	for _, how := range []string{"in the callback", "meanwhile"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var told []EventKind
				var end func()
				config := Config{MaxIdle: time.Minute, Notify: func(s *Socket, e Event) {
					if e.Kind == EventIdle {
						end()
						<-s.Done()
						if len(s.house.all()) != 0 {
							t.Error("the socket is left")
						}
					}
					told = append(told, e.Kind)
				}}
				g, p := bubble(t, config, func(c net.Conn) {
					end = func() { c.Close() }
					if how == "meanwhile" {
						end = func() {
							go c.Close()
							time.Sleep(time.Second)
						}
					}
				})
				defer p.Close()
				time.Sleep(2 * time.Minute)
				synctest.Wait()
				if want := []EventKind{EventIdle, EventClosed}; !slices.Equal(told, want) || g.Len() != 0 {
					t.Errorf("%v, not %v", told, want)
				}
			})
		})
	}
}
