package stat

import (
	"io"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/internal/wire/gateway"
)

type watched struct {
	server *Server
	lab    *lab.Lab
	change func(lab.Change) error
	links  *links // nil: the lab describes no links
	maps   gpuMaps
	looker *looker
}

// Watch makes s show the ports on the lab's switch, their events, GPU memory, and, if the lab describes any, links,
// until the result is closed. It is a lab.Service.
func (s *Server) Watch(l *lab.Lab) (io.Closer, error) {
	ports := map[wire.Port]*lab.Port{}
	for _, p := range l.Ports() {
		ports[p.NIC()] = p
	}
	s.SetPorts(func() (list []Port) {
		for _, link := range l.Switch().Links() {
			p := Port{Kind: "host", Link: link} // of a gateway, behind which the host is; other ports' kinds follow
			if g, ok := link.Port().(interface{ Stats() gateway.Stats }); ok {
				p.Gateway = g.Stats
			}
			if _, ok := link.Port().(interface{ UplinkStats() map[string]uint64 }); ok {
				p.Kind = "uplink"
			}
			if n, ok := link.Port().(*nic.Port); ok {
				p = Port{Kind: ports[n].Model.Name, NIC: n, MAC: ports[n].MAC, Holders: ports[n].Holders,
					Memory: ports[n].FrontendMemory}
			}
			list = append(list, p)
		}
		return list
	})
	w := &watched{server: s, lab: l, change: l.Apply, links: newLinks(l)}
	w.looker = &looker{maps: &w.maps, end: make(chan struct{}), left: map[*lab.Port]int{}}
	for _, p := range l.Ports() {
		p.NIC().Observe(&observed{port: p.Name, events: &s.events, maps: &w.maps, look: func() { w.looker.ask(p) }})
	}
	l.OnApply(func(c lab.Change) { s.events.add(Event{Port: c.Of, Kind: "fault", Text: c.String()}) })
	s.lab.Store(w)
	return w, nil
}

// Close stores the lab's last Page, with all flows, in the Server, and ends what Watch began.
func (w *watched) Close() error {
	s := w.server
	s.last.Store(s.page(0, askHolders))
	s.lab.Store(nil)
	w.lab.OnApply(nil)
	for _, p := range w.lab.Ports() {
		p.NIC().Observe(nil)
	}
	w.looker.stop()
	s.SetPorts(nil)
	s.holders.forget()
	return nil
}
