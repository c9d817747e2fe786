package stat

var MetricsHandler = metricsHandler

// HasLooked reports whether the lab's looker has no more readings of rings to do; false if s has no lab.
func HasLooked(s *Server) bool {
	l := s.lab.Load()
	if l == nil {
		return false
	}
	l.looker.mu.Lock()
	defer l.looker.mu.Unlock()
	return len(l.looker.left) == 0
}
