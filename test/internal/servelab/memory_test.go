package servelab

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/testkit"
)

// In this test a QEMU adds memory to its guest without sharing it with vnic (QMP object-add, device_add).
//
// Invariant: dma: Bytes of memory that QEMU has not shared, hot-added too, are never sent.
func TestHotAddedMemoryThatIsNotShared(t *testing.T) {
	testkit.Boots(t)
	for _, c := range []struct{ nic, backend string }{
		{lab.GVE, "memory-backend-memfd"}, {lab.GVE, "memory-backend-ram"},
		{lab.Virtio, "memory-backend-memfd"}, {lab.Virtio, "memory-backend-ram"},
	} {
		t.Run(c.nic+" "+c.backend, func(t *testing.T) {
			try(t, func(b *bench) {
				b.nic, b.stock, b.private = c.nic, true, c.backend
				b.qemuArgs, b.kernelArgs = []string{"-m", "slots=1,maxmem=4G"}, "memhp_default_state=online_kernel"
			})
		})
	}
}

func (b *bench) privateMemory(ctx context.Context) {
	im := b.prepare(nil)
	s := b.startServe(ctx, "--nic", b.nic, "--ports", "1", "--gpu-memory", "0", "--host-ports", "all")
	defer func() { s.kill() }()
	g, err := im.boot(ctx, s, 0)
	b.must("boot", err)
	defer g.kill()
	b.must("DHCP", g.Call(ctx, "stock.up", nil, nil))
	host, err := net.Listen("tcp", "127.0.0.1:0")
	b.must("listen", err)
	defer host.Close()
	sink := &sink{}
	go sink.serve(host)
	_, port, _ := net.SplitHostPort(host.Addr().String())
	sent := make(chan error, 1)
	go func() {
		sent <- g.Call(ctx, "stock.upload", args{Addr: net.JoinHostPort(s.rep.Gateway, port), Bytes: upload, Streams: 4}, nil)
	}()
	until := func(what string, so func(right uint64) bool) {
		b.Helper()
		testkit.Eventually(b.T, what, func() bool {
			select {
			case err := <-sent:
				b.Fatalf("not before the guest has sent all: %s: %v", what, err)
			default:
			}
			right, wrong := sink.got()
			if wrong != "" {
				b.Fatalf("%s, behind %d right bytes", wrong, right)
			}
			return so(right)
		})
	}
	until("bytes of memory that is shared come", func(right uint64) bool { return right > 0 })
	b.must("object-add", g.QMP(ctx, "object-add", map[string]any{"qom-type": b.private, "id": "more", "size": 512 << 20,
		"share": false}))
	b.must("device_add", g.QMP(ctx, "device_add", map[string]any{"driver": "pc-dimm", "memdev": "more"}))
	until("frames are dropped", func(uint64) bool { return s.stat(ctx)[0].drops() >= 10 })
	s.says(ctx, "share=on")
	right, _ := sink.got()
	b.ok("%d bytes came as they were sent, none other; %d frames were dropped", right, s.stat(ctx)[0].drops())
}

func (p *portCounters) drops() (n uint64) {
	for _, q := range p.Queues {
		n += q.TX.Drops
	}
	return n
}

// upload is the length of each stream, in bytes. The test fails if the upload ends while the test waits.
const upload = 64 << 20

// sink receives streams of upload bytes, and compares them with the bytes of stuff.
type sink struct {
	mu    sync.Mutex
	right uint64
	wrong string // describes the first read that differed; "": none did
}

func (k *sink) got() (right uint64, wrong string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.right, k.wrong
}

func (k *sink) serve(l net.Listener) {
	want := stuff(upload)
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			b := make([]byte, 64<<10)
			_, err := io.ReadFull(c, b[:9])
			for sent := 0; err == nil && sent < upload; {
				var n int
				n, err = c.Read(b)
				k.compare(b[:n], want[sent:min(sent+n, upload)])
				sent += n
			}
		}()
	}
}

func (k *sink) compare(got, want []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if bytes.Equal(got, want) {
		k.right += uint64(len(got))
	} else if k.wrong == "" {
		k.wrong = fmt.Sprintf("%d bytes came changed, %d of them zeroes", len(got), bytes.Count(got, []byte{0}))
	}
}
