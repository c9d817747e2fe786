package lab

import (
	"io"

	"vnic.dev/vnic/internal/wire/uplink"
)

// MaxUplinks is the maximum number of uplinks of a lab.
const MaxUplinks = 16

// Uplinks returns a service for each uplink. keep becomes uplink.Options.Keep, and may be nil.
func Uplinks(list []uplink.Config, keep func(path string, dir bool) (remove func() error, err error)) (s []Service) {
	for _, c := range list {
		s = append(s, Uplink(uplink.Options{Config: c, Keep: keep}))
	}
	return s
}

// Uplink returns a service that opens an uplink, with the lab's largest MaxMTU, its Log and Storm. It must
// follow a gateway's service, because an uplink drops frames from the gateway's MAC.
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
