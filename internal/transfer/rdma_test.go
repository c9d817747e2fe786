package transfer

import (
	"bytes"
	"context"
	"net/netip"
	"syscall"
	"testing"

	"vnic.dev/vnic/gpumem"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/rdma"
	"vnic.dev/vnic/internal/testkit"
)

// rdmaEnds returns r for both guests, so that A accesses memory that B offers.
func (w *world) rdmaEnds(r RDMA) (asks, offers RDMA) {
	port := uint16(w.ports.Add(1))
	r.Local, r.Remote = netip.AddrPortFrom(w.a.v4, 0), netip.AddrPortFrom(w.b.v4, port)
	asks, offers = r, r
	offers.Offer, offers.Local = true, r.Remote
	asks.GPU, offers.GPU = int(w.a.gpu.ID()), int(w.b.gpu.ID())
	return asks, offers
}

func (w *world) connectRDMA(r RDMA) (info RDMAInfo, path RDMAPath) {
	w.t.Helper()
	ctx := w.t.Context()
	asks, offers := w.rdmaEnds(r)
	info = testkit.Must(w.b.node.OpenRDMA(ctx, offers))(w.t)
	testkit.Equal(w.t, "window of the other end", testkit.Must(w.a.node.OpenRDMA(ctx, asks))(w.t).Window, info.Window)
	testkit.OK(w.t, both(ctx, func(ctx context.Context) (err error) { path, err = w.a.node.ConnectRDMA(ctx); return err },
		func(ctx context.Context) error { return testkit.Err(w.b.node.ConnectRDMA(ctx)) }))
	return info, path
}

func (w *world) closeRDMA() {
	w.t.Helper()
	for _, g := range []*guest{w.a, w.b} {
		testkit.OK(w.t, g.node.CloseRDMA(w.t.Context()))
		testkit.OK(w.t, g.node.CloseRDMA(w.t.Context()))
		g.empty()
	}
}

func TestRDMA(t *testing.T) {
	const size = 3<<20 + 4096
	for _, c := range []struct {
		what string
		r    RDMA
		mtu  int
		bad  lab.Impairment
		path uint16
	}{
		{what: "put", r: RDMA{Memory: MemoryGPU, QPs: 1, Depth: 16}, path: 1024},
		{what: "get", r: RDMA{Memory: MemoryGPU, QPs: 3, Depth: 2, Read: true}, mtu: 9000, path: 4096},
		{what: "put of RAM", r: RDMA{Memory: MemoryRAM, QPs: 2, Depth: 4, PathMTU: 512}, path: 512},
		{what: "get of RAM", r: RDMA{Memory: MemoryRAM, QPs: 1, Depth: 4, Read: true}, path: 1024},
		{what: "put with loss", r: RDMA{Memory: MemoryGPU, QPs: 2, Depth: 16}, bad: lab.Impairment{Loss: 0.01, Seed: 7},
			path: 1024},
		{what: "get with loss", r: RDMA{Memory: MemoryGPU, QPs: 2, Depth: 16, Read: true},
			bad: lab.Impairment{Loss: 0.01, Seed: 7}, path: 1024},
	} {
		t.Run(c.what, func(t *testing.T) {
			w := newWorld(t, options{mtu: c.mtu, bad: c.bad})
			ctx := t.Context()
			c.r.Data = Area{dataOff, size}
			for range 2 {
				info, path := w.connectRDMA(c.r)
				testkit.Equal(t, "path MTU", path.MTU, c.path)
				src, dst := w.a, w.b
				if c.r.Read {
					src, dst = w.b, w.a
				}
				gpumem.FillAt(src.ram[dataOff:][:size], 5, 0)
				gpumem.FillAt(dst.ram[dataOff:][:size+1], 6, 0)
				last := dst.ram[dataOff+size]
				if c.r.Memory == MemoryRAM {
					testkit.Equal(t, "window of RAM", info.Window, ramPieces*ramPiece)
					testkit.OK(t, src.node.StageRDMA(ctx, RDMAStage{Len: size}))
				}
				res := testkit.Must(w.a.node.MoveRDMA(ctx, RDMAMove{Len: size, Block: 100_000}))(t)
				testkit.Equal(t, "bytes", res.Bytes, size)
				testkit.Equal(t, "work requests", res.Requests, (size+99_999)/100_000)
				if c.r.Memory == MemoryRAM {
					testkit.OK(t, dst.node.StageRDMA(ctx, RDMAStage{Len: size, Back: true}))
				}
				if !bytes.Equal(src.ram[dataOff:][:size], dst.ram[dataOff:][:size]) || dst.ram[dataOff+size] != last {
					t.Error("the payload of the captured frames is not the payload sent, or is longer")
				}
				w.closeRDMA()
			}
			a, b := testkit.Must(w.a.port.RDMACounts())(t), testkit.Must(w.b.port.RDMACounts())(t)
			device := a.Out.DeviceBytes >= 2*size && b.In.DeviceBytes >= 2*size && a.Out.HostBytes+b.In.HostBytes == 0
			host := a.Out.HostBytes >= 2*size && b.In.HostBytes >= 2*size && a.Out.DeviceBytes+b.In.DeviceBytes == 0
			if c.r.Memory == MemoryGPU && !device || c.r.Memory == MemoryRAM && !host ||
				a.Out.GPUFileBytes+b.In.GPUFileBytes > 0 {
				t.Errorf("A %+v\nB %+v", a.Out, b.In)
			}
		})
	}
}

// A refuses access beyond B's offer. If A forges the offer, B's NIC refuses the access.
func TestRDMABeyondWhatIsOffered(t *testing.T) {
	w := newWorld(t, options{})
	ctx := t.Context()
	r := RDMA{Memory: MemoryGPU, QPs: 1, Depth: 4, Data: Area{dataOff, 1 << 20}}
	w.connectRDMA(r)
	testkit.ErrorIs(t, testkit.Err(w.a.node.MoveRDMA(ctx, RDMAMove{Len: 1<<20 + 1, Block: 4096})), syscall.EINVAL)
	testkit.ErrorIs(t, testkit.Err(w.b.node.MoveRDMA(ctx, RDMAMove{Len: 4096, Block: 4096})), syscall.EINVAL)
	e := w.a.node.rdma
	e.remote[0].Len /= 2
	testkit.ErrorSays(t, testkit.Err(w.a.node.MoveRDMA(ctx, RDMAMove{Len: 1 << 20, Block: 1 << 20})),
		"the peer offers 524288 bytes, and not 1048576")
	e.remote[0] = rdma.Remote{Key: e.remote[0].Key, VA: 4096, Len: 1 << 20}
	before := bytes.Clone(w.b.ram)
	err := testkit.Err(w.a.node.MoveRDMA(ctx, RDMAMove{Len: 1 << 20, Block: 1 << 20}))
	testkit.ErrorSays(t, err, "move after 0 of 1048576 bytes", "WRITE", "access error, says the peer")
	if !bytes.Equal(before, w.b.ram) {
		t.Error("the peer's memory has changed")
	}
	w.closeRDMA()
	w.connectRDMA(r)
	testkit.OK(t, testkit.Err(w.a.node.MoveRDMA(ctx, RDMAMove{Len: 1 << 20, Block: 1 << 20})))
	w.closeRDMA()
}

func TestRDMAEnds(t *testing.T) {
	w := newWorld(t, options{})
	ctx := t.Context()
	asks, offers := w.rdmaEnds(RDMA{Memory: MemoryGPU, QPs: 1, Depth: 4, Data: Area{dataOff, 4 << 20}})
	testkit.ErrorIs(t, testkit.Err(w.a.node.ConnectRDMA(ctx)), syscall.EINVAL)
	testkit.ErrorIs(t, testkit.Err(w.a.node.MoveRDMA(ctx, RDMAMove{})), syscall.EINVAL)
	for _, bad := range []func(r *RDMA){
		func(r *RDMA) { r.QPs = 0 }, func(r *RDMA) { r.Depth = MaxRDMADepth + 1 }, func(r *RDMA) { r.Memory = "disk" },
		func(r *RDMA) { r.Data.Bytes = 1 << 40 },
	} {
		r := asks
		bad(&r)
		if _, err := w.a.node.OpenRDMA(ctx, r); err == nil {
			t.Errorf("%+v is open", r)
		}
	}
	w.a.empty()

	testkit.OK(t, testkit.Err(w.b.node.OpenRDMA(ctx, offers)))
	testkit.ErrorIs(t, testkit.Err(w.b.node.OpenRDMA(ctx, offers)), syscall.EALREADY)
	waits := make(chan error, 1)
	cctx, cancel := context.WithCancel(ctx)
	go func() { waits <- testkit.Err(w.b.node.ConnectRDMA(cctx)) }()
	cancel()
	testkit.ErrorIs(t, <-waits, context.Canceled)
	testkit.OK(t, w.b.node.CloseRDMA(ctx))
	testkit.OK(t, testkit.Err(w.b.node.OpenRDMA(ctx, offers)))
	go func() { waits <- testkit.Err(w.b.node.ConnectRDMA(ctx)) }()
	testkit.OK(t, w.b.node.CloseRDMA(ctx)) // before ConnectRDMA waits, or while it waits
	if err := <-waits; err == nil {
		t.Error("connected with nobody")
	}

	w.connectRDMA(RDMA{Memory: MemoryGPU, QPs: 1, Depth: 4, Data: Area{dataOff, 4 << 20}})
	go func() {
		for {
			if _, err := w.a.node.MoveRDMA(ctx, RDMAMove{Len: 4 << 20, Block: 4096}); err != nil {
				waits <- err
				return
			}
		}
	}()
	testkit.Eventually(t, "it moves", func() bool {
		c, _ := w.a.port.RDMACounts()
		return c.Out.DeviceBytes > 0
	})
	testkit.OK(t, w.a.node.CloseRDMA(ctx))
	if err := <-waits; err == nil {
		t.Error("it has not ended")
	}
	w.closeRDMA()
}

func TestRDMABehindAgents(t *testing.T) {
	w := newWorld(t, options{})
	a, _ := w.a.remote(t, "rdma a")
	b, _ := w.b.remote(t, "rdma b")
	ctx := t.Context()
	for r, g := range map[*Remote]*guest{&a: w.a, &b: w.b} {
		testkit.Must(r.Setup(ctx, SetupArgs{Addrs: []netip.Prefix{netip.PrefixFrom(g.v4, 24)}}))(t)
	}
	const size = 1 << 20
	asks, offers := w.rdmaEnds(RDMA{Memory: MemoryRAM, QPs: 2, Depth: 4, Data: Area{dataOff, size}})
	testkit.Equal(t, "window", testkit.Must(OpenRDMA(ctx, b, offers))(t).Window, ramPieces*ramPiece)
	testkit.OK(t, testkit.Err(OpenRDMA(ctx, a, asks)))
	testkit.OK(t, both(ctx, func(ctx context.Context) error { return testkit.Err(ConnectRDMA(ctx, a)) },
		func(ctx context.Context) error { return testkit.Err(ConnectRDMA(ctx, b)) }))
	gpumem.FillAt(w.a.ram[dataOff:][:size], 9, 0)
	testkit.OK(t, StageRDMA(ctx, a, RDMAStage{Len: size}))
	res := testkit.Must(MoveRDMA(ctx, a, RDMAMove{Len: size, Block: 4096}))(t)
	testkit.Equal(t, "bytes", res.Bytes, size)
	testkit.OK(t, StageRDMA(ctx, b, RDMAStage{Len: size, Back: true}))
	if !bytes.Equal(w.a.ram[dataOff:][:size], w.b.ram[dataOff:][:size]) {
		t.Error("the bytes that arrived differ from those sent")
	}
	cpu := testkit.Must(CPUTime(ctx, b))(t)
	if cpu.User+cpu.System == 0 {
		t.Errorf("%+v", cpu)
	}
	testkit.OK(t, CloseRDMA(ctx, a))
	testkit.OK(t, CloseRDMA(ctx, b))
}
