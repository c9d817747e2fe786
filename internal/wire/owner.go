package wire

// Owner returns the link of the port to which a MAC is bound (Identity), or nil if there is none or the
// binding is idle. isPortMAC: the MAC is that port's own.
func (s *Switch) Owner(mac MAC) (l *Link, isPortMAC bool) {
	r := &s.names
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.byAddr[mac.source()]
	if c == nil || c.by == nil || c.isPortMAC && c.by.Learn && c.by.learned != mac {
		return nil, false // the configured MAC of a port that learns its MAC is unbound
	}
	if now := r.now(); !c.isPortMAC && c.idle(now) {
		return nil, false
	} else if !c.isPortMAC {
		r.want(c, now)
	}
	return c.by.link, c.isPortMAC
}

// Router reports whether the link's Identity is a router's.
func (l *Link) Router() bool { return l.who != nil && l.who.Router }

// Refuse counts a frame that the port has dropped by itself, without a report to the tap.
func (l *Link) Refuse(r DropReason) { l.count.dropped(r) }
