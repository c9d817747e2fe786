package lab

import (
	"io"
	"slices"

	"vnic.dev/vnic/uplink"
)

// Uplink is a port that leads out, for Options.Services. In o, the MTU that it has to carry, the NIC that has it, and the
// log are filled in. It comes behind a gateway, of whose MAC it is to know.
func Uplink(o uplink.Options) Service {
	return func(l *Lab) (io.Closer, error) {
		o := o
		most := slices.MaxFunc(l.ports, func(a, b *Port) int { return a.MTU - b.MTU })
		o.MTU, o.NIC, o.Log = most.MTU, most.Name, l.opt.Log
		u, err := uplink.New(l.sw, o)
		if err != nil {
			return nil, err
		}
		return u, nil
	}
}
