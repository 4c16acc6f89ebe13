package remote

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/bubble"
	"github.com/headgate/headgate/internal/old/core"
)

// What runs out of time is no failure if the server has answered something else since it
// was sent, to limits or to slots. Otherwise the silence counts from the first that was
// sent, whatever the order in which they end.
func TestSilenceIsThatOfTheServer(t *testing.T) {
	const timeout = 100 * time.Millisecond
	late := context.DeadlineExceeded
	for name, test := range map[string]struct {
		run  func(w *watch, server *Server, send func() attempt)
		away bool
	}{
		"each after the other": {func(w *watch, _ *Server, send func() attempt) {
			for range MaxFailures {
				a := send()
				time.Sleep(timeout)
				w.report(a, late)
			}
		}, true},
		"together, for one Timeout": {func(w *watch, _ *Server, send func() attempt) {
			var all []attempt
			for range 10 * MaxFailures {
				all = append(all, send())
			}
			time.Sleep(timeout)
			for _, a := range all {
				w.report(a, late)
			}
		}, false},
		"together, and one that was sent first ends last": {func(w *watch, _ *Server, send func() attempt) {
			first := send()
			time.Sleep(2 * timeout)
			for range MaxFailures - 1 {
				w.report(send(), late)
			}
			w.report(first, late)
		}, true},
		"refused at the same moment": {func(w *watch, _ *Server, send func() attempt) {
			for range 10 * MaxFailures {
				w.report(send(), syscall.ECONNREFUSED)
			}
		}, true},
		"there was no connection to be had": {func(w *watch, _ *Server, send func() attempt) {
			for range 10 * MaxFailures {
				a := send()
				time.Sleep(timeout)
				w.report(a, ErrUnsent)
			}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				opened := 0
				d := newDatabase(1, clock)
				w := newWatch(d.Probe, Config{Timeout: timeout, Observer: &core.Observer{Changed: func(reason error) {
					if reason != nil {
						opened++
					}
				}}})
				server := d.servers[0]
				test.run(&w, server, func() attempt { return server.attempt(&server.limits, 0) })
				if st := StateOf(d.Servers()); st.Away != test.away || st.Away && opened != 1 {
					t.Errorf("opened %d times: %+v", opened, st)
				}
				time.Sleep(time.Minute) // probes end
			})
		})
	}
}
