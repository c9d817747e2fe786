package qemu

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	guestimages "vnic.dev/vnic/guest-images"
	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/testkit"
)

// program builds the guest program once, and returns its path.
var program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "vnic-guest-test-")
	if err != nil {
		return "", err
	}
	programDir = dir
	return guestimages.BuildProgram(context.Background(), "vnic.dev/vnic/internal/machine/qemu/testdata/guest", dir)
})

var programDir string

func TestMain(m *testing.M) {
	if os.Getenv(envVictim) != "" {
		victim()
	}
	if os.Getenv(envCaller) != "" {
		caller()
	}
	code := m.Run()
	if programDir != "" {
		_ = os.RemoveAll(programDir)
	}
	os.Exit(code)
}

func guest(t *testing.T, modules ...string) Config {
	t.Helper()
	r := fetched(t)
	path := testkit.Must(program())(t)
	c, closer, err := guestConfig(t.Context(), r, path, modules)
	testkit.OK(t, err)
	t.Cleanup(func() { _ = closer.Close() })
	c.Name = t.Name()
	return c
}

func guestConfig(ctx context.Context, r *assets.Resolved, program string, modules []string) (Config, io.Closer, error) {
	img, err := guestimages.Build(ctx, guestimages.Options{
		CacheDir: r.Cache, ModulesDir: r.Kernel.Modules, Modules: modules, Program: program,
	})
	if err != nil {
		return Config{}, nil, err
	}
	initrd, err := img.Initrd(agent.Config{Modules: modules, Hostname: "a"})
	if err != nil {
		return Config{}, nil, err
	}
	return Config{
		QEMU: r.QEMU, Kernel: r.Kernel, Initrd: []io.Reader{initrd},
		RAMSize: 256 << 20, Accel: AccelTCG, TimeLimit: 3 * time.Minute,
	}, initrd, nil
}

func boot(t *testing.T, c Config) *Machine {
	t.Helper()
	testkit.LeavesNothing(t)
	m, err := Start(context.WithoutCancel(t.Context()), c) // t's context ends before Cleanup
	testkit.OK(t, err)
	t.Cleanup(func() { _ = m.Close() })
	return m
}

// initrd makes an initramfs with this package's guest program and the agent's configuration c.
func initrd(t *testing.T, c agent.Config) []io.Reader {
	t.Helper()
	img, err := guestimages.Build(t.Context(), guestimages.Options{CacheDir: t.TempDir(), Program: must(program())})
	testkit.OK(t, err)
	r := testkit.Must(img.Initrd(c))(t)
	t.Cleanup(func() { _ = r.Close() })
	return []io.Reader{r}
}

func TestGuestBootsAndListsItsDevices(t *testing.T) {
	c := guest(t, "uio-pci-generic")
	c.GPUs = []GPU{{File: sized(t, 16<<20), Size: 16 << 20}}
	start := time.Now()
	m := boot(t, c)
	t.Logf("init after %v", time.Since(start))
	h := testkit.Must(agent.SayHello.Call(t.Context(), m.Agent(), agent.None{}))(t)
	t.Logf("hello after %v: %+v", time.Since(start), h)
	if h.Kernel != c.Kernel.Version {
		t.Errorf("guest runs kernel %q, not %q", h.Kernel, c.Kernel.Version)
	}
	if got := strings.Join(h.Modules, " "); got != "uio uio_pci_generic" {
		t.Errorf("modules loaded: %q", got)
	}
	devices := h.Find(0x1af4, 0x1110)
	if len(devices) != 1 || len(devices[0].BARs) != 2 || devices[0].BARs[1].Size != 16<<20 {
		t.Errorf("GPU: %+v", devices)
	}
	if r, err := agent.Run.Call(t.Context(), m.Agent(), agent.Exec{Args: []string{"/init"}}); err != nil {
		t.Error(err)
	} else if r.Status != 2 || !strings.Contains(r.Stderr, "A tool is named by") {
		t.Errorf("exec: %+v", r)
	}
	if err := m.Agent().Call(t.Context(), "nonsense", nil, nil); !errors.As(err, new(*agent.RemoteError)) {
		t.Errorf("an operation that is not there: %v", err)
	}
	testkit.OK(t, m.PowerOff(t.Context()))
	t.Logf("off after %v", time.Since(start))
	testkit.OK(t, m.Close())
}

func crash(t *testing.T, trigger string) error {
	m := boot(t, guest(t))
	if err := m.Agent().Call(t.Context(), "crash", trigger, nil); err == nil {
		t.Error("the guest lived on")
	}
	<-m.Done()
	err := m.Close()
	t.Log(err)
	return err
}

func TestKernelPanicIsReported(t *testing.T) {
	err := crash(t, "kernel")
	var e *RunError
	if !errors.As(err, &e) || !errors.Is(err, ErrKernelPanic) || !strings.Contains(e.Detail, "sysrq") ||
		len(e.Console) == 0 {
		t.Errorf("got %v", err)
	}
}

func TestGuestResetIsReported(t *testing.T) {
	if err := crash(t, "reset"); !errors.Is(err, ErrReset) {
		t.Errorf("got %v", err)
	}
}

func TestAgentPanicIsReported(t *testing.T) {
	err := crash(t, "panic")
	if !errors.Is(err, ErrAgent) || !strings.Contains(err.Error(), "panic: asked to crash") ||
		!strings.Contains(err.Error(), "opCrash") {
		t.Errorf("got %v", err)
	}
}

func TestModuleThatIsNotThereIsReported(t *testing.T) {
	c := guest(t)
	testkit.LeavesNothing(t)
	c.Initrd = initrd(t, agent.Config{Modules: []string{"gve"}})
	_, err := Start(t.Context(), c)
	if err == nil || !strings.Contains(err.Error(), "module gve is not in this guest's image") {
		t.Errorf("got %v", err)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestGuestWithoutInitIsReported(t *testing.T) {
	c := guest(t)
	testkit.LeavesNothing(t)
	c.Initrd = []io.Reader{strings.NewReader(strings.Repeat("\x00", 512))}
	_, err := Start(t.Context(), c)
	t.Log(err)
	if !errors.Is(err, ErrKernelPanic) {
		t.Errorf("got %v", err)
	}
}

func TestLimitsEndTheRun(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Config)
		want   error
	}{
		"boot": {func(c *Config) { c.BootLimit = time.Millisecond }, ErrNoInit},
		"run":  {func(c *Config) { c.TimeLimit = time.Millisecond }, ErrTimeLimit},
	} {
		t.Run(name, func(t *testing.T) {
			conf := guest(t)
			testkit.LeavesNothing(t)
			c.change(&conf)
			_, err := Start(t.Context(), conf)
			if !errors.Is(err, c.want) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// Invariant: qemu: Cancel, Close, or the death of the parent end QEMU.
func TestCancelEndsQEMU(t *testing.T) {
	c := guest(t)
	testkit.LeavesNothing(t)
	ctx, cancel := context.WithCancel(t.Context())
	m, err := Start(ctx, c)
	testkit.OK(t, err)
	defer m.Close()
	cancel()
	<-m.Done()
	if err := m.Close(); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	testkit.ErrorIs(t, agent.SayHello.Do(t.Context(), m.Agent(), agent.None{}), agent.ErrClosed, "a call after the end")
}

// Invariant: qemu: Cancel, Close, or the death of the parent end QEMU.
func TestCloseEndsQEMU(t *testing.T) {
	c := guest(t)
	c.Append = earlyWords
	m := boot(t, c)
	if n := bytes.Count(m.Console(), []byte("\n")); n < 15 { // each line shows a probe that the guest is alive
		t.Errorf("a probe's kernel prints %d lines:\n%s", n, m.Console())
	}
	for range 2 {
		testkit.OK(t, m.Close())
	}
	testkit.ErrorIs(t, testkit.Err(os.Stat(fmt.Sprintf("/proc/%d", m.PID()))), os.ErrNotExist, "QEMU %d", m.PID())
}

func TestQEMUThatRefusesItsArgumentsIsReported(t *testing.T) {
	c := guest(t)
	testkit.LeavesNothing(t)
	c.Args = []string{"-no-such-option"}
	_, err := Start(t.Context(), c)
	var e *RunError
	if !errors.As(err, &e) || !errors.Is(err, ErrExited) || !strings.Contains(strings.Join(e.Stderr, " "),
		"no-such-option") {
		t.Errorf("got %v", err)
	}
}
