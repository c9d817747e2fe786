package wire

// Owner returns the link of the port to which a MAC is bound (Identity), or nil if there is none or the
// binding is idle. isPortMAC: the MAC is that port's own. If it is not, the call counts as another port that wants the
// MAC (BindingIdle).
func (s *Switch) Owner(mac MAC) (l *Link, isPortMAC bool) {
	r := &s.names
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.byAddr[mac.source()]
	if c == nil || c.by == nil || c.isPortMAC && c.by.Learn && c.by.learned != mac {
		return nil, false // a port that learns its MAC does not own the configured one
	}
	if now := r.now(); !c.isPortMAC && c.idle(now) {
		return nil, false
	} else if !c.isPortMAC {
		r.want(c, now)
	}
	return c.by.link, c.isPortMAC
}

// Router reports whether the link has an Identity with Router set.
func (l *Link) Router() bool { return l.who != nil && l.who.Router }

// Refuse counts a frame that the port itself has dropped; it does not report it to the tap.
func (l *Link) Refuse(r DropReason) { l.count.dropped(r) }
