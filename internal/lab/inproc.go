package lab

import (
	"errors"
	"net"

	"vnic.dev/vnic/internal/driver"
	"vnic.dev/vnic/internal/scm"
)

// InProcess makes a driver with the options o in this process, and connects it to the port by vhost-user. The
// caller closes the driver before the lab. If the NIC is not a virtio NIC, InProcess returns an error.
func (p *Port) InProcess(o driver.Options) (*driver.NIC, error) {
	if p.Model.VFIOUser {
		return nil, errors.New("port " + p.Name + ": no driver in this process for a " + p.Model.Name + " NIC")
	}
	backend, frontend, err := scm.Pair()
	if err != nil {
		return nil, err
	}
	p.Connected(backend)
	f := driver.FrontendOptions{Options: o, Conn: frontend, MAC: net.HardwareAddr(p.MAC[:]), MTU: p.MTU}
	for _, g := range p.GPUs {
		f.GPUs = append(f.GPUs, driver.FrontendGPU{ID: g.ID(), FD: g.FD(), Size: g.Size()})
	}
	n, err := driver.Attach(f)
	if err == nil {
		p.lab.changing.Lock()
		defer p.lab.changing.Unlock()
		p.driver = n
	}
	return n, err
}
