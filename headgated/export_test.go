package headgated

// Overrides returns how many limiters of limits that requests bring the server has.
func (s *Server) Overrides() int { return s.overrides.used.Len() }
