package headgated

import "net"

// Overrides returns how many limiters of limits that requests bring the server has.
func (s *Server) Overrides() int { return s.overrides.used.Len() }

// GRPCDoor returns what serves Envoy's rate limit service, and what ends that at once.
func (s *Server) GRPCDoor(l net.Listener) (serve, stop func()) {
	d := s.grpcDoor(l, nil)
	return func() { _ = d.serve(l) }, func() { _ = d.abort() }
}

var (
	BasicUser   = basicUser
	Method      = method
	TrustedPeer = trustedPeer
)
