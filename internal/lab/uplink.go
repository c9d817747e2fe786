package lab

import (
	"io"

	"vnic.dev/vnic/internal/wire/uplink"
)

// MaxUplinks is the maximum number of uplinks in a lab file, or in the flags of a command.
const MaxUplinks = 16

// Uplinks returns a service (Uplink) for each Config in list. keep becomes uplink.Options.Keep, and may be nil.
func Uplinks(list []uplink.Config, keep func(path string, dir bool) (remove func() error, err error)) (s []Service) {
	for _, c := range list {
		s = append(s, Uplink(uplink.Options{Config: c, Keep: keep}))
	}
	return s
}

// Uplink returns a service that opens an uplink with the options o, except for its MTU and NIC, from the lab's NIC with
// the largest MaxMTU, and the lab's Log and Storm. The service must follow a gateway's service in Options.Services: an
// uplink drops incoming frames from the gateway's MAC, unless the switch has seen this MAC behind the uplink before.
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
