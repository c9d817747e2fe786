package qemu

import (
	"context"
	"io"
	"os"
	"sync"
	"testing"
	"time"

	"vnic.dev/vnic/guest-images"
	"vnic.dev/vnic/guest-images/agent"
)

var buildOnce = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "vnic-guest-test-")
	if err != nil {
		return "", err
	}
	builtDir = dir
	return guestimages.BuildProgram(context.Background(), dir)
})

var builtDir string

func TestMain(m *testing.M) {
	code := m.Run()
	if builtDir != "" {
		_ = os.RemoveAll(builtDir)
	}
	os.Exit(code)
}

// guest gives the configuration of a small guest whose program is built from these sources.
func guest(t *testing.T, modules ...string) Config {
	t.Helper()
	r := fetched(t)
	program, err := buildOnce()
	if err != nil {
		t.Fatal(err)
	}
	img, err := guestimages.Build(t.Context(), guestimages.Options{
		CacheDir: r.Cache, ModulesDir: r.Kernel.Modules, Modules: modules, Program: program,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("image: %d bytes", img.Size)
	initrd, err := img.Initrd(agent.Config{Modules: modules, Hostname: "a"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = initrd.Close() })
	return Config{
		Name: t.Name(), QEMU: r.QEMU, Kernel: r.Kernel, Initrd: []io.Reader{initrd},
		RAMSize: 256 << 20, Accel: AccelTCG, TimeLimit: 3 * time.Minute,
	}
}

func TestGuestBootsAndListsItsDevices(t *testing.T) {
	c := guest(t, "uio_pci_generic")
	gpu, err := NewMemory("gpu", 16<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer gpu.Close()
	c.GPUs = []GPU{{File: gpu, Size: 16 << 20}}
	t0 := time.Now()
	m, err := Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	t.Logf("booted in %v", time.Since(t0))
	var h agent.Hello
	if err := m.Agent().Call(t.Context(), "hello", nil, &h); err != nil {
		t.Fatal(err)
	}
	t.Logf("hello after %v: %+v", time.Since(t0), h)
	if err := m.PowerOff(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("off after %v", time.Since(t0))
	t.Logf("console: %s", m.Console())
}
