package stat

import (
	"io"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/internal/wire/gateway"
)

// Watch has s show all ports on a lab's switch, and its links if somebody has said what there is, until what it gives
// is closed: a lab.Service.
func (s *Server) Watch(l *lab.Lab) (io.Closer, error) {
	ports := map[wire.Port]*lab.Port{}
	for _, p := range l.Ports() {
		ports[p.NIC()] = p
	}
	s.SetPorts(func() (list []Port) {
		for _, link := range l.Switch().Links() {
			p := Port{Kind: "host", Link: link} // a gateway's: the host itself is behind it
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
	change := l.Apply
	s.change.Store(&change)
	s.links.Store(newLinks(l))
	shown := &pageLab{lab: l}
	shown.stop = shown.observe(&s.events)
	s.lab.Store(shown)
	return watched{s}, nil
}

type watched struct{ *Server }

func (w watched) Close() error {
	w.last.Store(w.page(0, askHolders))
	if l := w.lab.Swap(nil); l != nil {
		l.stop()
	}
	w.change.Store(nil)
	w.SetPorts(nil)
	w.holders.forget()
	w.links.Store(nil)
	return nil
}
