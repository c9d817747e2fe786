package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// guest starts a process for each gateway, in a network namespace with the gateway's NIC, and has one after the other
// measure. Then it restarts the guest, whose connections are still open, if a process answers "again".
func guest() error {
	type process struct {
		name string
		in   io.WriteCloser
		out  *bufio.Scanner
	}
	var list []process
	for _, g := range gateways {
		link, err := linkOf(g)
		if err != nil {
			return err
		}
		cmd := exec.Command("/proc/self/exe", "nic", g.name)
		cmd.SysProcAttr = &unix.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
		cmd.Stderr = os.Stderr
		in, err := cmd.StdinPipe()
		if err != nil {
			return err
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			return err
		}
		if err := cmd.Start(); err != nil {
			return err
		}
		if err := netlink.LinkSetNsPid(link, cmd.Process.Pid); err != nil {
			return fmt.Errorf("%s: %w", g.name, err)
		}
		list = append(list, process{g.name, in, bufio.NewScanner(out)})
		if _, err := fmt.Fprintln(in, link.Attrs().Name); err != nil {
			return err
		}
	}
	again := false
	for _, p := range list {
		if _, err := fmt.Fprintln(p.in, "go"); err != nil {
			return err
		}
		if !p.out.Scan() {
			return fmt.Errorf("%s: ended early", p.name)
		}
		again = again || p.out.Text() == "again"
	}
	if !again {
		return nil
	}
	fmt.Println("gatewayrows: begins anew")
	return unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
}

func linkOf(g gateway) (netlink.Link, error) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		if l.Attrs().HardwareAddr.String() == g.mac {
			return l, nil
		}
	}
	return nil, fmt.Errorf("no NIC %s of %s", g.mac, g.name)
}

// probeAll is the process of a gateway. It answers "again" after the measurements of the guest's first boot, and
// "end" after the measurement of a later one.
func probeAll(name string) error {
	in := bufio.NewScanner(os.Stdin)
	if !in.Scan() {
		return io.ErrUnexpectedEOF
	}
	var p *prober
	for _, g := range gateways {
		if g.name == name {
			p = &prober{gateway: g, link: in.Text()}
		}
	}
	if err := p.configure(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	var boots int
	if err := p.ask("/boot/"+name, nil, &boots); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	first := boots == 1
	if first { // The gateways' processes measure the silence at the same time.
		if err := p.report("silence", p.silence); err != nil {
			return err
		}
	}
	if !in.Scan() {
		return io.ErrUnexpectedEOF
	}
	if !first {
		if err := p.report("reset", p.afterReset); err != nil {
			return err
		}
		fmt.Println("end")
		return nil
	}
	if err := p.rows(); err != nil {
		return err
	}
	fmt.Println("again")
	in.Scan()
	return nil
}

type prober struct {
	gateway
	link   string
	lease  *dhcpv4.DHCPv4
	router net.IP
	kept   []net.Conn
}

func (p *prober) configure() error {
	link, err := netlink.LinkByName(p.link)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return err
	}
	c, err := nclient4.New(p.link)
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	lease, err := c.Request(ctx, dhcpv4.WithRequestedOptions(dhcpv4.OptionDNSDomainSearchList, dhcpv4.OptionInterfaceMTU))
	if err != nil {
		return fmt.Errorf("DHCP: %w", err)
	}
	p.lease = lease.ACK
	if b := p.lease.Options.Get(dhcpv4.OptionInterfaceMTU); len(b) == 2 {
		_ = netlink.LinkSetMTU(link, int(b[0])<<8|int(b[1])) // the NIC may refuse it
	}
	address := &net.IPNet{IP: p.lease.YourIPAddr, Mask: p.lease.SubnetMask()}
	if err := netlink.AddrReplace(link, &netlink.Addr{IPNet: address}); err != nil {
		return err
	}
	if routers := p.lease.Router(); len(routers) > 0 {
		p.router = routers[0]
		return netlink.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: p.router})
	}
	return errors.New("DHCP: no router")
}
