package wire

// Owner says whose a MAC is, by the ports' Identities: the port that has it for its own, or that uses
// it now; nil: nobody. own says that it is the port's own: no frame of another machine has it, but
// one of a machine that has the same MAC. A port whose frames are not checked, as one that leads to
// other machines, asks before the switch learns a MAC from it.
func (s *Switch) Owner(mac MAC) (l *Link, own bool) {
	r := &s.names
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.claims[mac.source()]
	if c == nil || c.by == nil || c.own && c.by.Learn && c.by.learned != mac {
		return nil, false // of a port that learns its MAC, what it was to have is nobody's
	}
	if now := r.now(); !c.own && c.idle(now) {
		return nil, false
	} else if !c.own {
		r.want(c, now)
	}
	return c.by.link, c.own
}

// Router says whether the link's Identity is a router's.
func (l *Link) Router() bool { return l.who != nil && l.who.Router }

// Refuse counts what the port itself has dropped of what came from elsewhere, before it was a Packet.
func (l *Link) Refuse(r DropReason) { l.count.dropped(r) }
