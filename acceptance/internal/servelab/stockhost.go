package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strconv"
)

// Bytes of a stream.
const (
	whole = 8 << 20
	short = 1 << 20
)

// stock has guests with nothing of ours but what process 1 is: the kernel's virtio_net and its TCP, on `vnic serve --mtu 9000`.
func stock(ctx context.Context) error {
	host, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer host.Close()
	go serveStreams(host)
	_, hostPort, _ := net.SplitHostPort(host.Addr().String())
	in, err := freePort()
	if err != nil {
		return err
	}
	im, err := prepare(ctx)
	if err != nil {
		return err
	}
	s, err := startServe(ctx, "--gpu-memory", "0", "--mtu", "9000", "--queues", "4", "--forward", in+":port0:"+strconv.Itoa(guestPort))
	if err != nil {
		return err
	}
	defer s.kill()
	guests, err := im.bootAll(ctx, s)
	defer guests.kill()
	if err != nil {
		return err
	}
	ok("two guests with the kernel's virtio_net, QEMU %s", im.QEMU.Version)
	a, b := guests[0], guests[1]
	for i, g := range guests {
		var l lease
		if err := g.Call(ctx, "stock.up", nil, &l); err != nil {
			return err
		}
		if l.Addr != g.addr || l.MTU != "9000" {
			return fmt.Errorf("guest %d: %+v, not %s with an MTU of 9000", i, l, g.addr)
		}
		ok("DHCP: %+v", l)
	}
	router := s.rep.Gateway
	both := func(what string, k int, n uint64) error {
		err := a.Call(ctx, "stock.stream", args{Addr: net.JoinHostPort(router, hostPort), Bytes: n, Streams: k}, nil)
		if err != nil {
			return fmt.Errorf("%s: to the host: %w", what, err)
		}
		if err := streams("127.0.0.1:"+in, n, k); err != nil {
			return fmt.Errorf("%s: from the host: %w", what, err)
		}
		err = a.Call(ctx, "stock.stream", args{Addr: net.JoinHostPort(b.addr, strconv.Itoa(guestPort)), Bytes: n, Streams: k}, nil)
		if err != nil {
			return fmt.Errorf("%s: to the other guest: %w", what, err)
		}
		ok("%s: %d x %d KiB each way: guest and host, host and guest (--forward), guest and guest", what, k, n>>10)
		return nil
	}
	do := func(g *guest, op string, a args) func() error { return func() error { return g.Call(ctx, op, a, nil) } }
	for _, step := range []struct {
		what string
		do   []func() error
		k    int
		n    uint64
	}{
		{"as it comes, MTU 9000", nil, 1, whole},
		{"TSO and checksums off", []func() error{do(a, "stock.offloads", args{})}, 1, short},
		{"off in both guests", []func() error{do(b, "stock.offloads", args{})}, 1, short},
		{"on in one", []func() error{do(a, "stock.offloads", args{On: true})}, 1, whole},
		{"on again, MTU 1500", []func() error{do(b, "stock.offloads", args{On: true}), do(a, "stock.mtu", args{MTU: 1500})}, 1, whole},
		{"TSO and checksums off, MTU 1500", []func() error{do(a, "stock.offloads", args{})}, 1, short},
		{"4 queue pairs", []func() error{do(a, "stock.offloads", args{On: true}), do(a, "stock.mtu", args{MTU: 9000}),
			do(a, "stock.queues", args{Queues: 4})}, 16, short},
		{"1 queue pair", []func() error{do(a, "stock.queues", args{Queues: 1})}, 4, short},
	} {
		for _, f := range step.do {
			if err := f(); err != nil {
				return fmt.Errorf("%s: %w", step.what, err)
			}
		}
		if err := both(step.what, step.k, step.n); err != nil {
			return err
		}
	}
	if err := s.queues(ctx); err != nil {
		return err
	}
	if err := errors.Join(a.Call(ctx, "stock.vlan", args{Addr: "192.168.5.1/24"}, nil),
		b.Call(ctx, "stock.vlan", args{Addr: "192.168.5.2/24"}, nil)); err != nil {
		return fmt.Errorf("VLAN: %w", err)
	}
	over := args{Addr: net.JoinHostPort("192.168.5.2", strconv.Itoa(guestPort)), Bytes: whole}
	for _, on := range []bool{true, false} {
		if err := errors.Join(a.Call(ctx, "stock.offloads", args{On: on}, nil), a.Call(ctx, "stock.stream", over, nil)); err != nil {
			return fmt.Errorf("VLAN, offloads %t: %w", on, err)
		}
		ok("VLAN %d between the guests, offloads %t: %d KiB each way", vlan, on, over.Bytes>>10)
	}
	_, err = s.term()
	return err
}

// queues says what vnic stat shows of the first NIC's: it has used more than one.
func (s *server) queues(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, *bin, "stat", "--json", strconv.Itoa(s.cmd.Process.Pid)).Output()
	if err != nil {
		return fmt.Errorf("vnic stat: %w", err)
	}
	type packets struct{ Packets uint64 }
	var snap struct {
		Ports []struct{ Queues []struct{ RX, TX packets } }
	}
	if err := json.Unmarshal(out, &snap); err != nil || len(snap.Ports) == 0 {
		return fmt.Errorf("vnic stat: %s: %w", out, err)
	}
	var rx, tx []uint64
	used := 0
	for _, q := range snap.Ports[0].Queues {
		rx, tx = append(rx, q.RX.Packets), append(tx, q.TX.Packets)
		if q.TX.Packets > 0 {
			used++
		}
	}
	if used < 2 {
		return fmt.Errorf("packets of transmit queues: %v: only %d are used", tx, used)
	}
	ok("vnic stat: packets of transmit queues %v, receive queues %v", tx, rx)
	return nil
}

func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, errors.Join(err, l.Close())
}
