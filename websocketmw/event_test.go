package websocketmw

import "testing"

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
