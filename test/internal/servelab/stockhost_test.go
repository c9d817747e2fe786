package servelab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
)

// stockLab has a vnic serve and two guests that use the kernel's virtio_net and TCP.
type stockLab struct {
	*bench
	*server
	im        *image
	guests    *pair
	curl      curl
	port, web string // of the test's servers of streams and of HTTP, on loopback
	in, webIn string // loopback ports that lead to the first guest's servers (--forward)
}

func (b *bench) stockGuests(ctx context.Context) {
	l := &stockLab{bench: b, guests: &pair{}}
	for port, serve := range map[*string]func(net.Listener){&l.port: serveStreams, &l.web: serveHTTP} {
		host, err := net.Listen("tcp", "127.0.0.1:0")
		b.must("listen", err)
		defer host.Close()
		go serve(host)
		_, *port, _ = net.SplitHostPort(host.Addr().String())
	}
	l.in, l.webIn = b.freePort(), b.freePort()
	steps := []func(context.Context){l.boot, l.pings, l.legacyStreams}
	if !b.legacy {
		var err error
		l.curl, err = findCurl(b.dir)
		b.must("curl", err)
		steps = []func(context.Context){l.boot, l.pings, l.offloads, l.names, l.fetch, l.queues, l.vlan, l.restart, l.private,
			l.macs}
	}
	l.im = b.prepare(l.curl.files)
	if !b.legacy {
		l.network(ctx)
	}
	l.server = b.startServe(ctx, "--gpu-memory", "0", "--mtu", "9000", "--queues", "4", "--host-ports", "all",
		"--forward", fmt.Sprint(l.in, ":port0:", guestPort), "--forward", fmt.Sprint(l.webIn, ":port0:", webPort))
	defer func() { l.kill() }()
	defer func() { l.guests.kill() }()
	for _, f := range steps {
		f(ctx)
	}
	l.term()
}

func (l *stockLab) network(ctx context.Context) {
	for mtu, leaveOut := range map[int][]string{1500: {romfile}, 9000: {romfile, ",host_mtu=9000"}} {
		s := l.startServe(ctx, "--gpu-memory", "0", "--mtu", strconv.Itoa(mtu), "--host-ports", "all")
		err := l.im.ipxe(ctx, s, 0, "http://gateway:"+l.web, leaveOut)
		s.kill()
		l.must(fmt.Sprint("MTU ", mtu), err)
		l.ok("iPXE, MTU %d", mtu)
	}
}

func (l *stockLab) boot(ctx context.Context) {
	var err error
	l.guests, err = l.im.bootAll(ctx, l.server)
	l.must("boot", err)
	l.ok("two guests with the kernel's virtio_net, QEMU %s", l.im.QEMU.Version)
	for i, g := range l.guests {
		var got lease
		l.must("DHCP", g.Call(ctx, "stock.up", nil, &got))
		if got.Addr != g.addr || got.MTU != "9000" {
			l.Fatalf("guest %d: %+v, not %s with an MTU of 9000", i, got, g.addr)
		}
		l.ok("DHCP: %+v", got)
		l.features(ctx, i)
	}
}

type step struct {
	guest int
	op    string
	args  args
}

func (l *stockLab) do(ctx context.Context, what string, steps ...step) {
	l.Helper()
	for _, s := range steps {
		l.must(fmt.Sprintf("%s: guest %d", what, s.guest), l.guests[s.guest].Call(ctx, s.op, s.args, nil))
	}
}

// streams moves n bytes down, then up, over k pairs of connections at once: from the first guest to the host's server,
// then from the host to the first guest's, then from the first guest to the second's.
func (l *stockLab) streams(ctx context.Context, what string, k int, n uint64) {
	l.Helper()
	to := func(addr, port string) step {
		return step{0, "stock.stream", args{Addr: net.JoinHostPort(addr, port), Bytes: n, Streams: k}}
	}
	l.do(ctx, what+": to the host", to(l.rep.Gateway, l.port))
	l.must(what+": from the host", streams("127.0.0.1:"+l.in, n, k))
	l.do(ctx, what+": to the other guest", to(l.guests[1].addr, strconv.Itoa(guestPort)))
	l.ok("%s: %d x %d KiB each way: guest and host, host and guest (--forward), guest and guest", what, k, n>>10)
}

func (l *stockLab) offloads(ctx context.Context) {
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
		l.do(ctx, s.what, s.do...)
		l.streams(ctx, s.what, 1, s.n)
	}
	l.do(ctx, "as before", offloads(0, true), mtu(9000))
}

// names checks that the first guest resolves the name of the second's port to the second's IPv6 address, and reaches
// that address.
func (l *stockLab) names(ctx context.Context) {
	var got, has struct{ Addr string }
	port := l.rep.Ports[1]
	l.must("AAAA", l.guests[0].Call(ctx, "stock.resolve", args{Addr: port.Name}, &got))
	l.must("IPv6", l.guests[1].Call(ctx, "stock.addr6", nil, &has))
	l.do(ctx, "IPv6", step{0, "stock.addr6", args{}})
	if got.Addr+"/64" != has.Addr || has.Addr != port.Addr6 {
		l.Fatalf("the AAAA of %s is %s, and printed is %s; the guest has %s", port.Name, got.Addr, port.Addr6, has.Addr)
	}
	to := step{0, "stock.stream", args{Addr: net.JoinHostPort(got.Addr, strconv.Itoa(guestPort)), Bytes: short}}
	l.do(ctx, "IPv6", to)
	l.ok("AAAA of %s: %s: %d KiB each way between the guests", port.Name, got.Addr, short>>10)
}

func (l *stockLab) fetch(ctx context.Context) {
	if l.curl.files == nil {
		l.Log("no curl on this machine: HTTP is left out")
		return
	}
	a := l.guests[0]
	for _, server := range []string{"gateway:" + l.web, l.rep.Gateway + ":" + l.web} {
		l.must("in a guest", a.get(ctx, server))
	}
	other := fmt.Sprint(l.rep.Ports[1].Name, ":", webPort)
	l.must("in a guest: IPv6", errors.Join(a.get(ctx, "gateway:"+l.web, "-6"), a.get(ctx, other, "-6")))
	l.must("by --forward", l.curl.get(ctx, "127.0.0.1:"+l.webIn))
	l.ok("curl: a guest from the host's loopback, by name, IPv4 and IPv6, and from the other; the host from a guest, "+
		"by --forward: "+
		"%d KiB each", whole>>10)
}

func (l *stockLab) vlan(ctx context.Context) {
	l.do(ctx, "VLAN", step{0, "stock.vlan", args{Addr: "192.168.5.1/24"}},
		step{1, "stock.vlan", args{Addr: "192.168.5.2/24"}})
	over := step{0, "stock.stream", args{Addr: net.JoinHostPort("192.168.5.2", strconv.Itoa(guestPort)), Bytes: whole}}
	for _, on := range []bool{true, false} {
		l.do(ctx, fmt.Sprintf("VLAN, offloads %t", on), step{0, "stock.offloads", args{On: on}}, over)
		l.ok("VLAN %d between the guests, offloads %t: %d KiB each way", vlan, on, over.args.Bytes>>10)
	}
}

// restart kills vnic serve and starts it again. The guests' QEMUs must connect to the new process.
func (l *stockLab) restart(ctx context.Context) {
	l.server = l.again(ctx)
	for _, p := range l.rep.Ports {
		l.says(ctx, p.Name+": process ")
	}
	const what = "vnic was killed and started again"
	l.streams(ctx, what, 1, short)
	l.spread(ctx, what+fmt.Sprintf(", %d queue pairs", pairs), pairs)
}

// private makes the first guest send from a privacy address (RFC 8981) to the second.
func (l *stockLab) private(ctx context.Context) {
	to := net.JoinHostPort(strings.TrimSuffix(l.rep.Ports[1].Addr6, "/64"), strconv.Itoa(guestPort))
	var has struct{ Addr string }
	l.must("privacy address", l.guests[0].Call(ctx, "stock.private", args{Addr: to}, &has))
	if has.Addr == l.rep.Ports[0].Addr6 {
		l.Fatalf("%s is the address that is printed", has.Addr)
	}
	l.do(ctx, "from a privacy address", step{0, "stock.stream", args{Addr: to, Bytes: short}})
	l.ok("from the privacy address %s: %d KiB each way between the guests", has.Addr, short>>10)
}

// macs checks that vnic serve drops frames from MACs that a guest has chosen itself, and, when it runs with
// --allow-mac any, passes them on.
func (l *stockLab) macs(ctx context.Context) {
	const first, second = "02:00:00:00:07:01", "02:00:00:00:07:02"
	l.do(ctx, "macvlan", step{0, "stock.macvlan", args{Addr: "192.168.7.1/24", MAC: first}})
	l.do(ctx, "bridge", step{1, "stock.bridge", args{Addr: "192.168.7.2/24", MAC: second}})
	for i, mac := range []string{first, second} {
		l.says(ctx, l.rep.Ports[i].Name+": mac-not-yours: the guest's frames from MAC "+mac)
	}
	l.ok("macvlan in a guest, a bridge in the other: what they send is dropped, and --allow-mac named")
	l.kill()
	l.server = l.serve(ctx, append(l.args, "--allow-mac", "any")...)
	to := net.JoinHostPort("192.168.7.1", strconv.Itoa(guestPort))
	l.do(ctx, "bridge to macvlan", step{1, "stock.stream", args{Addr: to, Bytes: short}})
	l.ok("--allow-mac any: %d KiB each way between bridge and macvlan", short>>10)
}

func (b *bench) freePort() string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	b.must("listen", err)
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}
