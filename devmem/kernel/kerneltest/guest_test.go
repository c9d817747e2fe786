package kerneltest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"vnic.dev/vnic/assets"
	"vnic.dev/vnic/dma"
	guestimages "vnic.dev/vnic/guest-images"
	"vnic.dev/vnic/guest-images/agent"
	"vnic.dev/vnic/nic"
	"vnic.dev/vnic/nic/gve"
	"vnic.dev/vnic/qemu"
	"vnic.dev/vnic/vfiouser"
	"vnic.dev/vnic/wire"
)

// Environment of a run by hand: which cases, and more arguments of the program.
const envCases = "VNIC_CASES"

// port is a gVNIC of the guest, on a switch of its own making.
func port(t *testing.T, files *dma.Files, sw *wire.Switch, i int) qemu.Netdev {
	t.Helper()
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	name := fmt.Sprintf("nic%d", i)
	d, err := gve.New(gve.Options{Port: nic.Config{
		Name: name, MAC: wire.MAC{2, 0, 0, 0, 0, byte(i + 1)}, MTU: 1500, Log: log,
	}}, dma.NewSpace(name, files))
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Port().Attach(sw, wire.LinkOptions{}); err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	var connected bool
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() {
		cancel()
		if connected {
			<-served
		}
		t.Logf("%s: %+v, %d failures", name, d.Port().Link().Counters(), d.Failures())
		d.Close()
	})
	return qemu.Netdev{VFIOUser: true, Connected: func(conn *net.UnixConn) {
		connected = true
		go func() {
			err := vfiouser.NewServer(d, d.Space(), log).Serve(ctx, conn)
			served <- err
		}()
	}}
}

// The suite over the unmodified kernel: its gve driver, on a gVNIC of ours, between two of them in one guest.
//
// Invariant: devmem/kernel: Linux's own sockets pass the same suite, over IPv4, IPv6 and loopback.
func TestConformanceOfTheKernel(t *testing.T) {
	if testing.Short() {
		t.Skip("needs QEMU and a kernel, and the network the first time")
	}
	r, err := assets.Fetch(t.Context(), assets.Options{IgnoreSystemQEMU: true})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	build := func(pkg string) string {
		sub := filepath.Join(dir, filepath.Base(pkg))
		if err := os.Mkdir(sub, 0o755); err != nil {
			t.Fatal(err)
		}
		path, err := guestimages.BuildProgram(t.Context(), pkg, sub)
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	img, err := guestimages.Build(t.Context(), guestimages.Options{
		CacheDir: r.Cache, ModulesDir: r.Kernel.Modules, Modules: []string{"gve"}, Program: build(guestimages.ProgramPackage),
		Files: map[string]string{"bin/devmem-conformance": build("vnic.dev/vnic/devmem/kernel/kerneltest/devmem-conformance")},
	})
	if err != nil {
		t.Fatal(err)
	}
	initrd, err := img.Initrd(agent.Config{Modules: []string{"gve"}, Hostname: "a", Node0: true})
	if err != nil {
		t.Fatal(err)
	}
	defer initrd.Close()
	const gpuSize = 64 << 20
	gpu, err := qemu.NewMemory("gpu", gpuSize)
	if err != nil {
		t.Fatal(err)
	}
	defer gpu.Close()
	files, sw := dma.NewFiles(), wire.NewSwitch(slog.New(slog.DiscardHandler))
	defer sw.Close()
	m, err := qemu.Start(t.Context(), qemu.Config{
		Name: t.Name(), QEMU: r.QEMU, Kernel: r.Kernel, Initrd: []io.Reader{initrd}, RAMSize: 512 << 20, Accel: qemu.AccelTCG,
		TimeLimit: 8 * time.Minute, GPUs: []qemu.GPU{{File: gpu, Size: gpuSize, Node: true}},
		Netdevs: []qemu.Netdev{port(t, files, sw, 0), port(t, files, sw, 1)}, Console: t.Output(),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	args := []string{"/bin/devmem-conformance", "-i", "eth0", "-peer", "eth1", "-node", "1"}
	if s := os.Getenv(envCases); s != "" {
		args = append(args, "-run", s)
	}
	var out agent.ExecResult
	if err := m.Agent().Call(t.Context(), "exec", agent.Exec{Args: args}, &out); err != nil {
		t.Fatal(err)
	}
	t.Logf("status %d\n%s", out.Status, out.Stderr)
	var res Result
	if err := json.Unmarshal([]byte(out.Stdout), &res); err != nil {
		t.Fatalf("%v: %q", err, out.Stdout)
	}
	t.Logf("%d passed, %d skipped, %d failed", res.Passed, res.Skipped, res.Failed)
	for _, c := range res.Cases {
		if c.Failed {
			t.Errorf("%s: %q", c.Name, c.Log)
		}
	}
	if out.Status != 0 || res.Passed == 0 {
		t.Errorf("status %d, %d passed", out.Status, res.Passed)
	}
	if err := m.PowerOff(t.Context()); err != nil {
		t.Error(err)
	}
}
