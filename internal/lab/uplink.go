package lab

import (
	"io"

	"vnic.dev/vnic/internal/wire/uplink"
)

// MaxUplinks is how many uplinks a lab has.
const MaxUplinks = 16

// Uplinks are services for several, each as Uplink. keep may be nil.
func Uplinks(list []uplink.Config, keep func(path string, dir bool) (remove func() error, err error)) (s []Service) {
	for _, c := range list {
		s = append(s, Uplink(uplink.Options{Config: c, Keep: keep}))
	}
	return s
}

// Uplink is a port that leads out, for Options.Services. In o, the MTU that it has to carry, the
// NIC that has it, the log and Storm are filled in. It comes behind a gateway, of whose MAC it is to
// know.
func Uplink(o uplink.Options) Service {
	return func(l *Lab) (io.Closer, error) {
		o := o
		most := l.largestMTU()
		o.MTU, o.NIC, o.Log, o.Storm = most.MaxMTU, most.Name, l.opt.Log, l.opt.Storm
		u, err := uplink.New(l.sw, o)
		if err != nil {
			return nil, err
		}
		return u, nil
	}
}
