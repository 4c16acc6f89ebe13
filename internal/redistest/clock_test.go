package redistest

import (
	"testing"
	"time"
)

func TestSetClock(t *testing.T) {
	t.Parallel()
	s := StartWithClock(t)
	for _, ahead := range []time.Duration{time.Hour, 0, -48 * time.Hour, 0} {
		s.SetClock(ahead)
	}
	if told, err := s.time(); err != nil || told.After(time.Now()) {
		t.Errorf("%v, %v", told, err)
	}
	if fields := s.Info("server"); fields["tcp_port"] == "" {
		t.Errorf("%v", fields)
	}
}
