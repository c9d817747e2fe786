package stat

var MetricsHandler = metricsHandler

// HasLooked says whether all that was set up has been looked at.
func HasLooked(s *Server) bool {
	l := s.lab.Load()
	if l == nil {
		return false
	}
	l.looker.mu.Lock()
	defer l.looker.mu.Unlock()
	return len(l.looker.left) == 0
}
