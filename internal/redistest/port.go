package redistest

import (
	"context"
	"math/rand/v2"
	"net"
	"strconv"
	"testing"
)

// Ports are below those that systems give to outgoing connections. Otherwise such a
// connection could take the port of a server while it is down, even one that seeks
// that very server and reaches itself.
//
//	guard    11000, 11002, ... 20998
//	port     the next one
//	bus      10000 above: the nodes of a Cluster talk there
const (
	firstPort = 11000
	portPairs = 5000
	busOffset = 10000
)

// Port returns a port for a server of this test. It belongs to the test until its end, whether a
// server runs or not. This process listens on the guard port below it, which all users of this
// package respect.
func Port(t testing.TB) int {
	t.Helper()
	for range 1000 {
		guard := firstPort + 2*rand.IntN(portPairs)
		g, err := listen(guard)
		if err != nil {
			continue
		}
		if free(guard+1) && free(guard+1+busOffset) {
			t.Cleanup(func() { _ = g.Close() })
			return guard + 1
		}
		_ = g.Close()
	}
	t.Fatal("redistest: no free port found")
	return 0
}

// free reports whether nobody listens on a port. It does not try to listen there: a process
// that is started at that moment would hold the port for a while after it was closed.
func free(port int) bool {
	c, err := new(net.Dialer).DialContext(context.Background(), "tcp", address(port))
	if err != nil {
		return true
	}
	_ = c.Close()
	return false
}

func listen(port int) (net.Listener, error) {
	return new(net.ListenConfig).Listen(context.Background(), "tcp", address(port))
}

func address(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
