package stat

import (
	"io"

	"vnic.dev/vnic/lab"
	"vnic.dev/vnic/nic"
	"vnic.dev/vnic/wire"
)

// Watch has s show all ports on a world's switch, until what it gives is closed: one of lab.Options.Services.
func (s *Server) Watch(w *lab.Lab) (io.Closer, error) {
	kind := lab.Virtio
	if w.Personality().VFIOUser {
		kind = lab.GVE
	}
	addrs := map[wire.Port]wire.MAC{}
	for _, p := range w.Ports() {
		addrs[p.NIC()] = p.MAC
	}
	s.SetPorts(func() (ports []Port) {
		for _, l := range w.Switch().Links() {
			p := Port{Kind: "host", Link: l} // a gateway's: the host itself is behind it
			if n, ok := l.Port().(*nic.Port); ok {
				p = Port{Kind: kind, NIC: n, MAC: addrs[n]}
			}
			ports = append(ports, p)
		}
		return ports
	})
	return forgetter{s}, nil
}

type forgetter struct{ s *Server }

func (f forgetter) Close() error {
	f.s.SetPorts(nil)
	return nil
}
