package guestnvme_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"vnic.dev/vnic/gpumem"
	guestimages "vnic.dev/vnic/guest-images"
	"vnic.dev/vnic/guest-images/agent"
	"vnic.dev/vnic/guest-images/guestnet"
	"vnic.dev/vnic/guest-images/guestnvme"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/lab"
	"vnic.dev/vnic/lab/labtest"
	"vnic.dev/vnic/lab/machines"
	"vnic.dev/vnic/lab/machines/machinetest"
	"vnic.dev/vnic/qemu"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const (
	nqn      = "nqn.2026-01.dev.vnic:target"
	diskSize = 64 << 20
	diskSeed = 11
)

// pair is two guests, a target and an initiator.
type pair struct {
	target, initiator *agent.Client
	addr              netip.AddrPort // the target's
	addr6             netip.Addr
	disk              *os.File // the target's disk "big", of diskSeed's pattern
}

func newPair(t *testing.T, targetModel string, disks ...qemu.Disk) *pair {
	t.Helper()
	driver := machines.SoftwareFor(targetModel).Driver
	targetModules := append(slices.Clone(guestnvme.TargetModules), driver)
	initiatorModules := append(slices.Clone(guestnvme.InitiatorModules), machines.SoftwareFor(lab.Virtio).Driver)
	im := machinetest.Images(t, []string{targetModel, lab.Virtio},
		guestimages.Options{Modules: slices.Concat(targetModules, initiatorModules)})
	l := machinetest.Lab(t, lab.Description{Guests: []lab.Guest{
		{Name: "target", NICs: []lab.NIC{{Model: targetModel}}},
		{Name: "initiator", NICs: []lab.NIC{{Model: lab.Virtio}}},
	}}, nil)
	p := &pair{addr: netip.AddrPortFrom(l.Port(0).Addr4.Addr(), guestnvme.Port), addr6: l.Port(0).Addr6.Addr()}
	begin := time.Now()
	target := machinetest.Boot(t, im, l.Machine(0), machines.Config{Name: "target", RAMSize: 256 << 20,
		Agent: agent.Config{Modules: targetModules}, Disks: disks})
	initiator := machinetest.Boot(t, im, l.Machine(1), machines.Config{Name: "initiator", RAMSize: 256 << 20,
		Agent: agent.Config{Modules: initiatorModules}})
	t.Logf("booted: %v", time.Since(begin))
	p.target, p.initiator = target.Agent(), initiator.Agent()
	var eg errgroup.Group
	for i, c := range []*agent.Client{p.target, p.initiator} {
		port := l.Port(i)
		eg.Go(func() error {
			r, err := guestnet.Apply(t.Context(), c, guestnet.Config{Interfaces: []guestnet.Interface{{
				MAC: net.HardwareAddr(port.MAC[:]).String(), MTU: port.MTU,
				Addrs: []netip.Prefix{port.Addr4, port.Addr6}}}})
			if err == nil && r.NotReady != "" {
				err = fmt.Errorf("%s", r.NotReady)
			}
			return err
		})
	}
	testkit.OK(t, eg.Wait())
	t.Logf("network: %v", time.Since(begin))
	return p
}

// newDisk is a memfd with the pattern of seed.
func newDisk(t *testing.T, size int, seed uint64) *os.File {
	t.Helper()
	f := testkit.Must(qemu.NewMemory("disk", uint64(size)))(t)
	t.Cleanup(func() { testkit.OK(t, f.Close()) })
	b := make([]byte, size)
	gpumem.FillAt(b, seed, 0)
	testkit.Must(f.WriteAt(b, 0))(t)
	return f
}

// bytes are those of the disk, by the host.
func (p *pair) bytes(t *testing.T, off, n uint64) []byte {
	t.Helper()
	b := make([]byte, n)
	testkit.Must(p.disk.ReadAt(b, int64(off)))(t)
	return b
}

func (p *pair) serve(t *testing.T, disks ...string) {
	t.Helper()
	testkit.OK(t, guestnvme.Serve(t.Context(), p.target, guestnvme.Target{NQN: nqn, Addrs: []netip.AddrPort{p.addr},
		Disks: disks}))
}

func (p *pair) connect(t *testing.T, nsids ...uint32) guestnvme.Controller {
	t.Helper()
	return testkit.Must(guestnvme.Connect(t.Context(), p.initiator, guestnvme.Connection{Addr: p.addr, NQN: nqn,
		NSIDs: nsids}))(t)
}

// Invariant: guest-images: A disk of a guest's NVMe/TCP target has the same bytes for initiators
// and for the host.
func TestKernelsTargetAndInitiator(t *testing.T) {
	disk := newDisk(t, diskSize, diskSeed)
	p := newPair(t, lab.Virtio, qemu.Disk{File: newDisk(t, 1<<20, 1), Serial: "small", ReadOnly: true},
		qemu.Disk{File: disk, Serial: "big"})
	p.disk = disk
	t.Run("refused", func(t *testing.T) { p.refused(t) })
	begin := time.Now()
	step := func(what string) {
		t.Logf("%s: %v", what, time.Since(begin))
		begin = time.Now()
	}
	p.serve(t, "big")
	p.serve(t, "big") // again: no error
	step("serve")
	p.giveUp(t)
	step("connect in vain")
	c := p.connect(t)
	step("connect")
	if n := c.Namespaces[0]; n.NSID != 1 || n.Size != diskSize || n.BlockSize != 512 {
		t.Errorf("%+v", c)
	}
	device := c.Namespaces[0].Device
	t.Run("read", func(t *testing.T) { p.read(t, device) })
	begin = time.Now()
	whole := guestnvme.Range{Device: device, Len: diskSize}
	testkit.Equal(t, "bytes the same", testkit.Must(guestnvme.Compare(t.Context(), p.initiator, whole, diskSeed))(t),
		diskSize)
	step("compare 64 MiB")
	sum := testkit.Must(guestnvme.Digest(t.Context(), p.initiator, whole))(t)
	testkit.Equal(t, "digest", sum, sha256.Sum256(p.bytes(t, 0, diskSize)))
	step("digest of 64 MiB")
	t.Run("write", func(t *testing.T) { p.write(t, device) })
	t.Run("end", func(t *testing.T) { p.end(t, c) })
}

// refused are targets that cannot be, each of which leaves nothing that would be in the way of a
// good one.
func (p *pair) refused(t *testing.T) {
	addrs := []netip.AddrPort{p.addr}
	for _, c := range []struct {
		target guestnvme.Target
		says   string
	}{
		{guestnvme.Target{NQN: "x", Addrs: addrs, Disks: []string{"big"}}, "NQN"},
		{guestnvme.Target{NQN: nqn, Addrs: addrs, Disks: []string{"big", "/dev/none"}}, "no such file"},
		{guestnvme.Target{NQN: nqn, Addrs: addrs, Disks: []string{"small"}}, "permission denied"}, // it is read-only
		{guestnvme.Target{NQN: nqn, Disks: []string{"big"},
			Addrs: append(addrs, netip.MustParseAddrPort("192.0.2.1:4420"))}, "cannot assign requested address"},
	} {
		testkit.ErrorSays(t, guestnvme.Serve(t.Context(), p.target, c.target), c.says)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	testkit.ErrorIs(t, guestnvme.Serve(ctx, p.target, guestnvme.Target{NQN: nqn, Addrs: addrs, Disks: []string{"none"}}),
		context.DeadlineExceeded)
	// Nobody listens.
	testkit.ErrorSays(t, testkit.Err(guestnvme.Connect(t.Context(), p.initiator,
		guestnvme.Connection{Addr: p.addr, NQN: nqn})), "connection refused")
}

// giveUp connects, and waits for a namespace that there is not. Of that nothing stays: a second
// connection of the same host to the same target is refused (EALREADY) while there is one.
func (p *pair) giveUp(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	conn := guestnvme.Connection{Addr: p.addr, NQN: nqn, NSIDs: []uint32{1, 2}}
	testkit.ErrorIs(t, testkit.Err(guestnvme.Connect(ctx, p.initiator, conn)), context.DeadlineExceeded)
	conn.NSIDs = nil
	testkit.Eventually(t, "the first connection's end", func() bool {
		c, err := guestnvme.Connect(t.Context(), p.initiator, conn)
		if err == nil {
			testkit.OK(t, guestnvme.Disconnect(t.Context(), p.initiator, c.Name))
		}
		return err == nil
	})
}

// A target has several namespaces and addresses; its NIC is a gVNIC.
func TestTargetWithGVNIC(t *testing.T) {
	if !labtest.Long() {
		t.Skip("one more pair of guests: with VNIC_LONG")
	}
	p := newPair(t, lab.GVE, qemu.Disk{File: newDisk(t, 1<<20, 21), Serial: "one"},
		qemu.Disk{File: newDisk(t, 2<<20, 22), Serial: "two"})
	testkit.OK(t, guestnvme.Serve(t.Context(), p.target, guestnvme.Target{NQN: nqn, Disks: []string{"one", "two"},
		Addrs: []netip.AddrPort{p.addr, netip.AddrPortFrom(p.addr6, 4421)}}))
	for _, a := range []netip.AddrPort{p.addr, netip.AddrPortFrom(p.addr6, 4421)} {
		c := testkit.Must(guestnvme.Connect(t.Context(), p.initiator, guestnvme.Connection{Addr: a, NQN: nqn,
			HostNQN: "nqn.2026-01.dev.vnic:" + a.Addr().Unmap().String()[:4], NSIDs: []uint32{2, 1}, Queues: 1}))(t)
		for i, n := range c.Namespaces {
			if want := uint64(2-i) << 20; n.Size != want || n.NSID != uint32(2-i) {
				t.Errorf("namespace %d: %+v", 2-i, n)
			}
			same := testkit.Must(guestnvme.Compare(t.Context(), p.initiator,
				guestnvme.Range{Device: n.Device, Len: n.Size}, uint64(22-i)))(t)
			testkit.Equal(t, fmt.Sprintf("by %v, of namespace %d, bytes the same", a, n.NSID), same, n.Size)
		}
		testkit.OK(t, guestnvme.Disconnect(t.Context(), p.initiator, c.Name))
	}
}

// read compares ranges by their digests.
func (p *pair) read(t *testing.T, device string) {
	for _, r := range []guestnvme.Range{
		{Off: 0, Len: 4096}, {Off: 512, Len: 512}, {Off: diskSize - 512, Len: 512}, {Len: 0},
		{Off: 1 << 20, Len: 1 << 20, Chunk: 64 << 10}, {Off: 3 << 20, Len: 8<<20 + 512, Chunk: 4 << 20},
		{Off: 16 << 20, Len: 2 << 20, Buffered: true},
	} {
		r.Device = device
		begin := time.Now()
		got := testkit.Must(guestnvme.Digest(t.Context(), p.initiator, r))(t)
		t.Logf("%+v: %v", r, time.Since(begin))
		if want := sha256.Sum256(p.bytes(t, r.Off, r.Len)); got != want {
			t.Errorf("%+v: %x, want %x", r, got, want)
		}
	}
	for _, r := range []guestnvme.Range{{Device: device, Off: 1, Len: 512}, {Device: device, Off: diskSize, Len: 512},
		{Device: device, Len: diskSize + 512}, {Device: "../null", Len: 512}, {Device: device, Len: 512, Chunk: 100}} {
		testkit.ErrorSays(t, testkit.Err(guestnvme.Digest(t.Context(), p.initiator, r)), "invalid argument")
	}
	// What the host changes is seen at once, at its place.
	b := p.bytes(t, 5<<20+777, 1)
	testkit.Must(p.disk.WriteAt([]byte{^b[0]}, 5<<20+777))(t)
	same := testkit.Must(guestnvme.Compare(t.Context(), p.initiator,
		guestnvme.Range{Device: device, Off: 5 << 20, Len: 1 << 20}, diskSeed))(t)
	testkit.Equal(t, "bytes the same", same, 777)
	testkit.Must(p.disk.WriteAt(b, 5<<20+777))(t)
}

// write has the initiator write; the host finds that there, and nothing else.
func (p *pair) write(t *testing.T, device string) {
	want := p.bytes(t, 0, diskSize)
	for i, r := range []guestnvme.Range{
		{Off: 8192, Len: 4096, Chunk: 4096},               // in the command capsule
		{Off: 32 << 20, Len: 4<<20 + 512, Chunk: 1 << 20}, // by R2T
		{Off: 48 << 20, Len: 1 << 20, Buffered: true},
	} {
		r.Device = device
		seed := uint64(100 + i)
		begin := time.Now()
		testkit.OK(t, guestnvme.Write(t.Context(), p.initiator, r, seed))
		t.Logf("%+v: %v", r, time.Since(begin))
		gpumem.FillAt(want[r.Off:r.Off+r.Len], seed, r.Off)
	}
	if got := p.bytes(t, 0, diskSize); sha256.Sum256(got) != sha256.Sum256(want) {
		for i := range got {
			if got[i] != want[i] {
				t.Fatalf("byte %d is %#x, want %#x", i, got[i], want[i])
			}
		}
	}
}

// end takes all away, and serves something else.
func (p *pair) end(t *testing.T, c guestnvme.Controller) {
	other := guestnvme.Target{NQN: nqn + "2", Addrs: []netip.AddrPort{p.addr}, Disks: []string{"big"}}
	testkit.ErrorSays(t, guestnvme.Serve(t.Context(), p.target, other), "busy")
	for range 2 { // again: no error
		testkit.OK(t, guestnvme.Disconnect(t.Context(), p.initiator, c.Name))
	}
	testkit.ErrorSays(t, testkit.Err(guestnvme.Digest(t.Context(), p.initiator,
		guestnvme.Range{Device: c.Namespaces[0].Device, Len: 512})), "no such block device")
	for range 2 {
		testkit.OK(t, guestnvme.Stop(t.Context(), p.target))
	}
	testkit.OK(t, guestnvme.Serve(t.Context(), p.target, other))
	testkit.OK(t, guestnvme.Stop(t.Context(), p.target))
}
