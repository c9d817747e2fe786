package servelab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
)

// stockLab is two guests with nothing of ours but what process 1 is: the kernel's virtio_net and its TCP.
type stockLab struct {
	*bench
	*server
	im        *image
	guests    *pair
	curl      curl
	port, web string // of our servers of streams and of HTTP, on loopback
	in, webIn string // where the first guest's are, on loopback (--forward)
}

// stockGuests has everything tried that people do to a stock guest, on `vnic serve --mtu 9000`.
func (b *bench) stockGuests(ctx context.Context) (err error) {
	l := &stockLab{bench: b, guests: &pair{}}
	for port, serve := range map[*string]func(net.Listener){&l.port: serveStreams, &l.web: serveHTTP} {
		host, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		defer host.Close()
		go serve(host)
		_, *port, _ = net.SplitHostPort(host.Addr().String())
	}
	if l.in, err = freePort(); err != nil {
		return err
	}
	if l.webIn, err = freePort(); err != nil {
		return err
	}
	if l.curl, err = findCurl(b.dir); err != nil {
		return err
	}
	l.im = b.prepare(l.curl.files)
	if err := l.network(ctx); err != nil {
		return err
	}
	l.server, err = b.startServe(ctx, "--gpu-memory", "0", "--mtu", "9000", "--queues", "4",
		"--forward", fmt.Sprint(l.in, ":port0:", guestPort), "--forward", fmt.Sprint(l.webIn, ":port0:", webPort))
	if err != nil {
		return err
	}
	defer func() { l.kill() }()
	defer func() { l.guests.kill() }()
	for _, f := range []func(context.Context) error{l.boot, l.offloads, l.names, l.fetch, l.queues, l.vlan, l.restart} {
		if err := f(ctx); err != nil {
			return err
		}
	}
	_, err = l.term()
	return err
}

// network boots from the network, with frames of usual length and longer ones.
func (l *stockLab) network(ctx context.Context) error {
	for mtu, leaveOut := range map[int][]string{1500: {romfile}, 9000: {romfile, ",host_mtu=9000"}} {
		s, err := l.startServe(ctx, "--gpu-memory", "0", "--mtu", strconv.Itoa(mtu))
		if err != nil {
			return err
		}
		err = l.im.ipxe(ctx, s, 0, "http://gateway:"+l.web, leaveOut)
		s.kill()
		if err != nil {
			return fmt.Errorf("MTU %d: %w", mtu, err)
		}
		l.ok("iPXE, MTU %d", mtu)
	}
	return nil
}

func (l *stockLab) boot(ctx context.Context) (err error) {
	if l.guests, err = l.im.bootAll(ctx, l.server); err != nil {
		return err
	}
	l.ok("two guests with the kernel's virtio_net, QEMU %s", l.im.QEMU.Version)
	for i, g := range l.guests {
		var got lease
		if err := g.Call(ctx, "stock.up", nil, &got); err != nil {
			return err
		}
		if got.Addr != g.addr || got.MTU != "9000" {
			return fmt.Errorf("guest %d: %+v, not %s with an MTU of 9000", i, got, g.addr)
		}
		l.ok("DHCP: %+v", got)
	}
	return nil
}

// step is something done to guests.
type step struct {
	guest int
	op    string
	args  args
}

func (l *stockLab) do(ctx context.Context, what string, steps ...step) error {
	for _, s := range steps {
		if err := l.guests[s.guest].Call(ctx, s.op, s.args, nil); err != nil {
			return fmt.Errorf("%s: guest %d: %w", what, s.guest, err)
		}
	}
	return nil
}

// streams has k of n bytes go each way between guest 0 and the host, and between the guests.
func (l *stockLab) streams(ctx context.Context, what string, k int, n uint64) error {
	a, b := l.guests[0], l.guests[1]
	err := a.Call(ctx, "stock.stream", args{Addr: net.JoinHostPort(l.rep.Gateway, l.port), Bytes: n, Streams: k}, nil)
	if err != nil {
		return fmt.Errorf("%s: to the host: %w", what, err)
	}
	if err := streams("127.0.0.1:"+l.in, n, k); err != nil {
		return fmt.Errorf("%s: from the host: %w", what, err)
	}
	err = a.Call(ctx, "stock.stream", args{Addr: net.JoinHostPort(b.addr, strconv.Itoa(guestPort)), Bytes: n, Streams: k},
		nil)
	if err != nil {
		return fmt.Errorf("%s: to the other guest: %w", what, err)
	}
	l.ok("%s: %d x %d KiB each way: guest and host, host and guest (--forward), guest and guest", what, k, n>>10)
	return nil
}

func (l *stockLab) offloads(ctx context.Context) error {
	offloads := func(guest int, on bool) step { return step{guest, "stock.offloads", args{On: on}} }
	mtu := func(n int) step { return step{0, "stock.mtu", args{MTU: n}} }
	for _, s := range []struct {
		what string
		do   []step
		n    uint64
	}{
		{"as it comes, MTU 9000", nil, whole},
		{"TSO and checksums off", []step{offloads(0, false)}, short},
		{"off in both guests", []step{offloads(1, false)}, short},
		{"on in one", []step{offloads(0, true)}, whole},
		{"on again, MTU 1500", []step{offloads(1, true), mtu(1500)}, whole},
		{"TSO and checksums off, MTU 1500", []step{offloads(0, false)}, short},
	} {
		if err := errors.Join(l.do(ctx, s.what, s.do...), l.streams(ctx, s.what, 1, s.n)); err != nil {
			return err
		}
	}
	return l.do(ctx, "as before", offloads(0, true), mtu(9000))
}

// names has a guest find the other by the name of its port, IPv6 included: the address is one that
// the kernel has made up.
func (l *stockLab) names(ctx context.Context) error {
	var got, has struct{ Addr string }
	err := errors.Join(l.guests[0].Call(ctx, "stock.resolve", args{Addr: l.rep.Ports[1].Name}, &got),
		l.guests[1].Call(ctx, "stock.addr6", nil, &has), l.do(ctx, "IPv6", step{0, "stock.addr6", args{}}))
	if err != nil {
		return err
	}
	port := l.rep.Ports[1]
	if got.Addr+"/64" != has.Addr || has.Addr != port.Addr6 {
		return fmt.Errorf("the AAAA of %s is %s, and printed is %s; the guest has %s", port.Name, got.Addr, port.Addr6,
			has.Addr)
	}
	to := step{0, "stock.stream", args{Addr: net.JoinHostPort(got.Addr, strconv.Itoa(guestPort)), Bytes: short}}
	if err := l.do(ctx, "IPv6", to); err != nil {
		return err
	}
	l.ok("AAAA of %s: %s: %d KiB each way between the guests", l.rep.Ports[1].Name, got.Addr, short>>10)
	return nil
}

// fetch has curl, in the guest and here.
func (l *stockLab) fetch(ctx context.Context) error {
	if l.curl.files == nil {
		l.Log("no curl on this machine: HTTP is left out")
		return nil
	}
	a := l.guests[0]
	for _, server := range []string{"gateway:" + l.web, l.rep.Gateway + ":" + l.web} {
		if err := a.get(ctx, server); err != nil {
			return fmt.Errorf("in a guest: %w", err)
		}
	}
	other := fmt.Sprint(l.rep.Ports[1].Name, ":", webPort)
	if err := errors.Join(a.get(ctx, "gateway:"+l.web, "-6"), a.get(ctx, other, "-6")); err != nil {
		return fmt.Errorf("in a guest: IPv6: %w", err)
	}
	if err := l.curl.get(ctx, "127.0.0.1:"+l.webIn); err != nil {
		return fmt.Errorf("by --forward: %w", err)
	}
	l.ok("curl: a guest from the host's loopback, by name, IPv4 and IPv6, and from the other; the host from a guest, "+
		"by --forward: "+
		"%d KiB each", whole>>10)
	return nil
}

func (l *stockLab) vlan(ctx context.Context) error {
	if err := l.do(ctx, "VLAN", step{0, "stock.vlan", args{Addr: "192.168.5.1/24"}},
		step{1, "stock.vlan", args{Addr: "192.168.5.2/24"}}); err != nil {
		return err
	}
	over := step{0, "stock.stream", args{Addr: net.JoinHostPort("192.168.5.2", strconv.Itoa(guestPort)), Bytes: whole}}
	for _, on := range []bool{true, false} {
		if err := l.do(ctx, "VLAN", step{0, "stock.offloads", args{On: on}}, over); err != nil {
			return fmt.Errorf("offloads %t: %w", on, err)
		}
		l.ok("VLAN %d between the guests, offloads %t: %d KiB each way", vlan, on, over.args.Bytes>>10)
	}
	return nil
}

// restart has a vnic die under the QEMUs, which come to the next one by themselves.
func (l *stockLab) restart(ctx context.Context) (err error) {
	if l.server, err = l.again(ctx); err != nil {
		return err
	}
	for _, p := range l.rep.Ports {
		if err := l.says(ctx, p.Name+": process "); err != nil {
			return err
		}
	}
	const what = "vnic was killed and started again"
	if err := l.streams(ctx, what, 1, short); err != nil {
		return err
	}
	return l.spread(ctx, what+fmt.Sprintf(", %d queue pairs", pairs), pairs)
}

func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, errors.Join(err, l.Close())
}
