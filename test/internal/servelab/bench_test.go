package servelab

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/machine/machinetest"
	"vnic.dev/vnic/test/internal/stranger"
)

// bench has the options and the folder of a test, which uses vnic serve as a user would.
type bench struct {
	*testing.T
	vnic, dir string
	nic       string
	client    bool // QEMU listens, vnic connects
	stock     bool // guests have the kernel's drivers, and this package's program in place of vnic's
	legacy    bool // with stock: drivers use the legacy interface of the NICs
	start     time.Time

	private string // QEMU's type of the memory, not shared, that the test adds to a guest; "": none

	qemuArgs   []string // arguments of QEMU after the arguments that vnic serve prints
	kernelArgs string   // further words of the kernel's command line
}

func program(t *testing.T) string {
	t.Helper()
	return machinetest.Program(t, "vnic.dev/vnic/cmd/vnic")
}

func (b *bench) ok(format string, args ...any) {
	b.Helper()
	b.Logf("%5.1f s  %s", time.Since(b.start).Seconds(), fmt.Sprintf(format, args...))
}

func (b *bench) must(what string, err error) {
	b.Helper()
	if err != nil {
		b.Fatalf("%s: %v", what, err)
	}
}

func try(t *testing.T, set func(*bench)) {
	t.Helper()
	b := &bench{T: t, vnic: program(t), dir: t.TempDir(), nic: lab.Virtio, start: time.Now()}
	set(b)
	ctx, cancel := context.WithTimeout(t.Context(), 390*time.Second)
	defer cancel()
	defer func() {
		for i := 0; t.Failed() && i < 2; i++ {
			console, _ := os.ReadFile(b.consoleOf(i))
			t.Logf("guest %d: %s", i, agent.Plain(string(console[max(0, len(console)-4<<10):])))
		}
	}()
	switch {
	case b.private != "":
		b.privateMemory(ctx)
	case b.stock:
		b.stockGuests(ctx)
	default:
		b.devmem(ctx)
	}
}

func (b *bench) devmem(ctx context.Context) {
	im := b.prepare(nil)
	s := b.startServe(ctx, "--nic", b.nic, "--gpu-memory", "128M", fmt.Sprintf("--client=%t", b.client))
	defer func() { s.kill() }()
	b.ok("vnic serve --nic %s --client=%t: %d ports", s.rep.NIC, b.client, len(s.rep.Ports))
	guests, err := im.bootAll(ctx, s)
	defer guests.kill()
	b.must("boot", err)
	b.ok("QEMU %s runs with what was printed, twice", im.QEMU.Version)
	b.must("send", b.send(ctx, guests[0], guests[1]))
	b.ok("from GPU to GPU")
	guests[1].kill()
	guests[1], err = im.boot(ctx, s, 1)
	b.must("boot again", err)
	b.ok("one QEMU was killed, and another took its NIC")
	b.pauses(ctx, s, guests)
	if b.nic == "virtio" { // QEMU's vfio-user client does not reconnect
		s = s.again(ctx)
		for _, p := range s.rep.Ports {
			s.says(ctx, p.Name+": warning: process ")
		}
		b.ok("vnic was killed and started again, and warns of both QEMUs: they have the GPU memory of the first")
	}
	b.ok("SIGTERM under two QEMUs: gone after %v, status 0", s.term().Round(time.Millisecond))
	for _, p := range s.rep.Ports {
		if b.client {
			break // the sockets belong to QEMU
		}
		if _, err := os.Lstat(p.Socket); err == nil {
			b.Fatalf("%s is left", p.Socket)
		}
	}
}

const transfer = 64 << 20

func (b *bench) send(ctx context.Context, from, to *guest) error {
	device := map[string]string{lab.Virtio: lab.Virtio, lab.GVE: iface}[b.nic]
	end := func(g *guest) stranger.End { return stranger.End{Guest: g.Guest, Device: device, Addr: g.addr} }
	return stranger.Send(ctx, end(from), end(to), transfer)
}

func (b *bench) consoleOf(i int) string { return filepath.Join(b.dir, fmt.Sprintf("console-%d", i)) }
