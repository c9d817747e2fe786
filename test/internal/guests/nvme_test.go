package guests

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"vnic.dev/vnic/gpumem"
	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/guestnvme"
	"vnic.dev/vnic/internal/machine"
	"vnic.dev/vnic/internal/machine/qemu"
	"vnic.dev/vnic/internal/testkit"
)

const nqn = "nqn.2026-01.dev.vnic:target"

// disks has the guests' disks, by serial number, with the pattern of a seed.
var disks = map[string]struct {
	guest    int
	size     uint64
	seed     uint64
	readOnly bool
}{
	diskBig:    {guest: virtioGuest, size: diskSize, seed: diskSeed},
	diskSmall:  {guest: virtioGuest, size: 1 << 20, seed: 1, readOnly: true},
	diskShared: {guest: virtioGuest, size: 1 << 20, seed: 3},
	diskOne:    {guest: gveGuest, size: 1 << 20, seed: 21},
	diskTwo:    {guest: gveGuest, size: 2 << 20, seed: 22},
}

const (
	diskBig    = "big"
	diskSmall  = "small"
	diskShared = "shared" // the disk of the clients' target
	diskOne    = "one"
	diskTwo    = "two"
)

func (w *guestLab) newDisks(t *testing.T) {
	t.Helper()
	w.disks = make(map[string]*os.File)
	for name, d := range disks {
		f := testkit.Must(qemu.NewMemory("disk", d.size))(t)
		t.Cleanup(func() { testkit.OK(t, f.Close()) })
		b := make([]byte, d.size)
		gpumem.FillAt(b, d.seed, 0)
		testkit.Must(f.WriteAt(b, 0))(t)
		w.disks[name] = f
	}
}

func (w *guestLab) disksOf(guest int) (list []qemu.Disk) {
	for name, d := range disks {
		if d.guest == guest {
			list = append(list, qemu.Disk{File: w.disks[name], Serial: name, ReadOnly: d.readOnly})
		}
	}
	return list
}

func (w *guestLab) bytes(t *testing.T, disk string, off, n uint64) []byte {
	t.Helper()
	b := make([]byte, n)
	testkit.Must(w.disks[disk].ReadAt(b, int64(off)))(t)
	return b
}

// pair has a guest whose kernel is an NVMe/TCP target, and one whose kernel is an initiator.
type pair struct {
	*guestLab
	target, initiator *agent.Client
	addr              netip.AddrPort // the target's
	addr6             netip.Addr
}

func (w *guestLab) pair(target, initiator *machine.Guest, port int) *pair {
	return &pair{w, target.Agent(), initiator.Agent(), w.addrPort(port, guestnvme.Port), w.ports[port].Addr6.Addr()}
}

const (
	diskSize = 24 << 20 // of diskBig
	diskSeed = 11
)

func (p *pair) serve(ctx context.Context, t *testing.T, disks ...string) {
	t.Helper()
	testkit.OK(t, guestnvme.Serve(ctx, p.target, guestnvme.Target{NQN: nqn, Addrs: []netip.AddrPort{p.addr},
		Disks: disks}))
}

func (p *pair) connect(ctx context.Context, t *testing.T, nsids ...uint32) guestnvme.Controller {
	t.Helper()
	return testkit.Must(guestnvme.Connect(ctx, p.initiator, guestnvme.Connection{Addr: p.addr, NQN: nqn,
		NSIDs: nsids}))(t)
}

func (w *guestLab) nvme(t *testing.T) {
	w.run(t, "target on virtio", w.pair(w.virtio, w.gve, virtioPort).all)
	w.run(t, "target on gve", w.pair(w.gve, w.virtio, gvePort).two)
}

func (p *pair) all(ctx context.Context, t *testing.T) {
	t.Run("refused", func(t *testing.T) { p.refused(ctx, t) })
	begin := time.Now()
	step := func(what string) {
		t.Logf("%s: %v", what, time.Since(begin))
		begin = time.Now()
	}
	p.serve(ctx, t, diskBig)
	p.serve(ctx, t, diskBig) // serving a disk twice is no error
	step("serve")
	p.giveUp(ctx, t)
	step("connect in vain")
	c := p.connect(ctx, t)
	step("connect")
	if n := c.Namespaces[0]; n.NSID != 1 || n.Size != diskSize || n.BlockSize != 512 {
		t.Errorf("%+v", c)
	}
	device := c.Namespaces[0].Device
	t.Run("read", func(t *testing.T) { p.read(ctx, t, device) })
	begin = time.Now()
	whole := guestnvme.Range{Device: device, Len: diskSize}
	testkit.Equal(t, "bytes the same", testkit.Must(guestnvme.Compare(ctx, p.initiator, whole, diskSeed))(t),
		diskSize)
	step("compare all")
	sum := testkit.Must(guestnvme.Digest(ctx, p.initiator, whole))(t)
	testkit.Equal(t, "digest", sum, sha256.Sum256(p.bytes(t, diskBig, 0, diskSize)))
	step("digest of all")
	t.Run("write", func(t *testing.T) { p.write(ctx, t, device) })
	t.Run("end", func(t *testing.T) { p.end(ctx, t, c) })
}

func (p *pair) refused(ctx context.Context, t *testing.T) {
	addrs := []netip.AddrPort{p.addr}
	for _, c := range []struct {
		target guestnvme.Target
		says   string
	}{
		{guestnvme.Target{NQN: "x", Addrs: addrs, Disks: []string{diskBig}}, "NQN"},
		{guestnvme.Target{NQN: nqn, Addrs: addrs, Disks: []string{diskBig, "/dev/none"}}, "no such file"},
		{guestnvme.Target{NQN: nqn, Addrs: addrs, Disks: []string{diskSmall}}, "permission denied"}, // it is read-only
		{guestnvme.Target{NQN: nqn, Disks: []string{diskBig},
			Addrs: append(addrs, netip.MustParseAddrPort("192.0.2.1:4420"))}, "cannot assign requested address"},
	} {
		testkit.ErrorSays(t, guestnvme.Serve(ctx, p.target, c.target), c.says)
	}
	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	testkit.ErrorIs(t, guestnvme.Serve(short, p.target, guestnvme.Target{NQN: nqn, Addrs: addrs, Disks: []string{"none"}}),
		context.DeadlineExceeded)
	// No server listens at the address.
	testkit.ErrorSays(t, testkit.Err(guestnvme.Connect(ctx, p.initiator,
		guestnvme.Connection{Addr: p.addr, NQN: nqn})), "connection refused")
}

// giveUp lets the context of Connect end while it waits for a namespace that does not come, and checks that a later
// Connect works. While a connection is open, a second one of the same host to the same target is refused (EALREADY).
func (p *pair) giveUp(ctx context.Context, t *testing.T) {
	short, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	conn := guestnvme.Connection{Addr: p.addr, NQN: nqn, NSIDs: []uint32{1, 2}}
	testkit.ErrorIs(t, testkit.Err(guestnvme.Connect(short, p.initiator, conn)), context.DeadlineExceeded)
	conn.NSIDs = nil
	testkit.Eventually(t, "the first connection's end", func() bool {
		c, err := guestnvme.Connect(ctx, p.initiator, conn)
		if err == nil {
			testkit.OK(t, guestnvme.Disconnect(ctx, p.initiator, c.Name))
		}
		return err == nil
	})
}

// two tests a target with several namespaces and addresses.
func (p *pair) two(ctx context.Context, t *testing.T) {
	addrs := []netip.AddrPort{p.addr, netip.AddrPortFrom(p.addr6, 4421)}
	testkit.OK(t, guestnvme.Serve(ctx, p.target, guestnvme.Target{NQN: nqn, Disks: []string{diskOne, diskTwo},
		Addrs: addrs}))
	for _, a := range addrs {
		c := testkit.Must(guestnvme.Connect(ctx, p.initiator, guestnvme.Connection{Addr: a, NQN: nqn,
			HostNQN: "nqn.2026-01.dev.vnic:" + a.Addr().Unmap().String()[:4], NSIDs: []uint32{2, 1}, Queues: 1}))(t)
		for i, n := range c.Namespaces {
			if want := uint64(2-i) << 20; n.Size != want || n.NSID != uint32(2-i) {
				t.Errorf("namespace %d: %+v", 2-i, n)
			}
			same := testkit.Must(guestnvme.Compare(ctx, p.initiator,
				guestnvme.Range{Device: n.Device, Len: n.Size}, uint64(22-i)))(t)
			testkit.Equal(t, fmt.Sprintf("by %v, of namespace %d, bytes the same", a, n.NSID), same, n.Size)
		}
		testkit.OK(t, guestnvme.Disconnect(ctx, p.initiator, c.Name))
	}
	testkit.OK(t, guestnvme.Stop(ctx, p.target))
}

func (p *pair) read(ctx context.Context, t *testing.T, device string) {
	for _, r := range []guestnvme.Range{
		{Off: 0, Len: 4096}, {Off: 512, Len: 512}, {Off: diskSize - 512, Len: 512}, {Len: 0},
		{Off: 1 << 20, Len: 1 << 20, Chunk: 64 << 10}, {Off: 3 << 20, Len: 8<<20 + 512, Chunk: 4 << 20},
		{Off: 16 << 20, Len: 2 << 20, Buffered: true},
	} {
		r.Device = device
		begin := time.Now()
		got := testkit.Must(guestnvme.Digest(ctx, p.initiator, r))(t)
		t.Logf("%+v: %v", r, time.Since(begin))
		if want := sha256.Sum256(p.bytes(t, diskBig, r.Off, r.Len)); got != want {
			t.Errorf("%+v: %x, want %x", r, got, want)
		}
	}
	for _, r := range []guestnvme.Range{{Device: device, Off: 1, Len: 512}, {Device: device, Off: diskSize, Len: 512},
		{Device: device, Len: diskSize + 512}, {Device: "../null", Len: 512}, {Device: device, Len: 512, Chunk: 100}} {
		testkit.ErrorSays(t, testkit.Err(guestnvme.Digest(ctx, p.initiator, r)), "invalid argument")
	}
	// The initiator sees a change by the host.
	b := p.bytes(t, diskBig, 5<<20+777, 1)
	testkit.Must(p.disks[diskBig].WriteAt([]byte{^b[0]}, 5<<20+777))(t)
	same := testkit.Must(guestnvme.Compare(ctx, p.initiator,
		guestnvme.Range{Device: device, Off: 5 << 20, Len: 1 << 20}, diskSeed))(t)
	testkit.Equal(t, "bytes the same", same, 777)
	testkit.Must(p.disks[diskBig].WriteAt(b, 5<<20+777))(t)
}

func (p *pair) write(ctx context.Context, t *testing.T, device string) {
	want := p.bytes(t, diskBig, 0, diskSize)
	for i, r := range []guestnvme.Range{
		{Off: 8192, Len: 4096, Chunk: 4096},               // in the command capsule
		{Off: 12 << 20, Len: 4<<20 + 512, Chunk: 1 << 20}, // by R2T
		{Off: 20 << 20, Len: 1 << 20, Buffered: true},
	} {
		r.Device = device
		seed := uint64(100 + i)
		begin := time.Now()
		testkit.OK(t, guestnvme.Write(ctx, p.initiator, r, seed))
		t.Logf("%+v: %v", r, time.Since(begin))
		gpumem.FillAt(want[r.Off:r.Off+r.Len], seed, r.Off)
	}
	if got := p.bytes(t, diskBig, 0, diskSize); sha256.Sum256(got) != sha256.Sum256(want) {
		for i := range got {
			if got[i] != want[i] {
				t.Fatalf("byte %d is %#x, want %#x", i, got[i], want[i])
			}
		}
	}
}

// end disconnects, removes the target, and serves another one.
func (p *pair) end(ctx context.Context, t *testing.T, c guestnvme.Controller) {
	other := guestnvme.Target{NQN: nqn + "2", Addrs: []netip.AddrPort{p.addr}, Disks: []string{diskBig}}
	testkit.ErrorSays(t, guestnvme.Serve(ctx, p.target, other), "busy")
	for range 2 { // disconnecting twice is no error
		testkit.OK(t, guestnvme.Disconnect(ctx, p.initiator, c.Name))
	}
	testkit.ErrorSays(t, testkit.Err(guestnvme.Digest(ctx, p.initiator,
		guestnvme.Range{Device: c.Namespaces[0].Device, Len: 512})), "no such block device")
	for range 2 {
		testkit.OK(t, guestnvme.Stop(ctx, p.target))
	}
	testkit.OK(t, guestnvme.Serve(ctx, p.target, other))
	testkit.OK(t, guestnvme.Stop(ctx, p.target))
}
