package servelab

import (
	"context"
	"fmt"
	"net"
	"strconv"
)

// forceLegacy makes Linux prefer the legacy interface (before virtio 1.0) of devices that also have the modern one
// (drivers/virtio/virtio_pci_common.c).
const forceLegacy = " virtio_pci.force_legacy=1"

var legacyNIC = [...]string{"disable-legacy=off", "disable-legacy=off,mrg_rxbuf=off"}

// Numbers of virtio's feature bits (virtio 1.3, 5.1.3 and 6).
const (
	mergeable = 15 // VIRTIO_NET_F_MRG_RXBUF
	version1  = 32 // VIRTIO_F_VERSION_1
)

func (l *stockLab) features(ctx context.Context, i int) {
	var got struct{ Features string }
	l.must("features", l.guests[i].Call(ctx, "stock.features", nil, &got))
	f, want := got.Features, map[int]byte{version1: '1', mergeable: '1'}
	if l.legacy {
		want[version1] = '0'
		if i == 1 {
			want[mergeable] = '0'
		}
	}
	for bit, v := range want {
		if len(f) <= bit || f[bit] != v {
			l.Fatalf("guest %d: bit %d of the features %s is not %c", i, bit, f, v)
		}
	}
	l.ok("guest %d: features %s", i, f)
}

func (l *stockLab) pings(ctx context.Context) {
	for i := range l.guests {
		for _, to := range []string{l.rep.Gateway, l.guests[1-i].addr} {
			for _, n := range []uint64{0, 56, 8000} {
				l.do(ctx, fmt.Sprintf("ping %s, %d bytes", to, n), step{i, "stock.ping", args{Addr: to, Bytes: n}})
			}
		}
	}
	l.ok("pings of 0, 56 and 8000 bytes are answered")
}

func (l *stockLab) legacyStreams(ctx context.Context) {
	l.streams(ctx, "legacy drivers", 1, whole)
	for _, to := range []string{net.JoinHostPort(l.rep.Gateway, l.port),
		net.JoinHostPort(l.guests[0].addr, strconv.Itoa(guestPort))} {
		l.do(ctx, "legacy, 10-byte header", step{1, "stock.stream", args{Addr: to, Bytes: whole}})
	}
	l.ok("%d KiB each way also of the second guest, to the host and to the first", whole>>10)
}
