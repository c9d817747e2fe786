package lab

import (
	"errors"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/driver"
)

// InProcess gives the port to a driver of ours in this process, over a vhost-user socket as QEMU has one. Queues and log are o's.
// The driver is the caller's to close, before the lab. Only a virtio NIC can have one.
func (p *Port) InProcess(o driver.Options) (*driver.NIC, error) {
	if p.Model.VFIOUser {
		return nil, errors.New("port " + p.Name + ": no driver in this process for a " + p.Model.Name + " NIC")
	}
	backend, frontend, err := socketPair()
	if err != nil {
		return nil, err
	}
	p.Connected(backend)
	f := driver.FrontendOptions{Options: o, Conn: frontend, MAC: net.HardwareAddr(p.MAC[:]), MTU: p.MTU}
	for _, g := range p.GPUs {
		f.GPUs = append(f.GPUs, driver.FrontendGPU{ID: g.ID(), FD: g.FD(), Size: g.Size()})
	}
	return driver.Attach(f)
}

// socketPair makes a connected pair of sockets.
func socketPair() (a, b *net.UnixConn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	var conns [2]*net.UnixConn
	var errs [2]error
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "vhost-user")
		var c net.Conn
		if c, errs[i] = net.FileConn(f); errs[i] == nil {
			conns[i] = c.(*net.UnixConn)
		}
		_ = f.Close()
	}
	if err := errors.Join(errs[0], errs[1]); err != nil {
		for _, c := range conns {
			if c != nil {
				_ = c.Close()
			}
		}
		return nil, nil, err
	}
	return conns[0], conns[1], nil
}
