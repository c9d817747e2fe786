package devmemtool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"vnic.dev/vnic/control"
	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/driver"
	"vnic.dev/vnic/gpumem"
	"vnic.dev/vnic/nic"
	"vnic.dev/vnic/nic/virtio"
	"vnic.dev/vnic/wire"
)

// TestMain sees that the tests leave no goroutine and no descriptor behind.
func TestMain(m *testing.M) {
	before := descriptors()
	code := m.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	if after := descriptors(); after > before && code == 0 {
		fmt.Fprintf(os.Stderr, "%d descriptors, %d at the beginning\n", after, before)
		code = 1
	}
	os.Exit(code)
}

func descriptors() int {
	c, s, err := socketPair() // makes the runtime open what it keeps
	if err == nil {
		_ = c.Close()
		_ = s.Close()
	}
	names, _ := os.ReadDir("/proc/self/fd")
	return len(names)
}

func socketPair() (a, b *net.UnixConn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	var conns [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "vhost-user")
		c, err := net.FileConn(f)
		if err := errors.Join(err, f.Close()); err != nil {
			return nil, nil, err
		}
		conns[i] = c.(*net.UnixConn)
	}
	return conns[0], conns[1], nil
}

// world is two guests' NICs and GPUs, on a switch. The tool opens them, as often as it is run.
type world struct {
	t      testing.TB
	guests [2]*guest
}

type guest struct {
	t     testing.TB
	pairs int
	gpu   *gpumem.GPU
	dev   *virtio.Device
	mac   wire.MAC
	// change may wrap the device that was opened.
	change func(*Device)
}

func newWorld(t testing.TB, pairs int) *world {
	t.Helper()
	w := &world{t: t}
	sw := wire.NewSwitch(slog.New(slog.DiscardHandler))
	t.Cleanup(func() {
		if err := sw.Close(); err != nil {
			t.Error(err)
		}
	})
	files := dma.NewFiles()
	for i := range w.guests {
		g := &guest{t: t, pairs: pairs, mac: wire.MAC{2, 0, 0, 0, 0, byte(i + 1)}}
		var err error
		if g.gpu, err = gpumem.NewGPU(files, i, 16<<20, gpumem.Options{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := g.gpu.Close(); err != nil {
				t.Error(err)
			}
		})
		if g.dev, err = virtio.New(virtio.Config{Files: files, Port: nic.Config{Name: string(rune('A' + i)), MAC: g.mac, MTU: 1500,
			QueuePairs: pairs, Log: slog.New(slog.DiscardHandler), GPUs: []nic.GPU{{GPU: g.gpu, Path: gpumem.Path{Kind: gpumem.PathBus},
				Info: control.GPUInfo{Attach: control.AttachBAR, BAR: 2}}}}}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(g.dev.Close)
		if err := g.dev.Port().Attach(sw, wire.LinkOptions{}); err != nil {
			t.Fatal(err)
		}
		w.guests[i] = g
	}
	return w
}

// open is an Opener.
func (g *guest) open(_ context.Context, r Request) (*Device, error) {
	back, front, err := socketPair()
	if err != nil {
		return nil, err
	}
	served := make(chan error, 1)
	dma.Go(func() { served <- g.dev.Serve(context.Background(), back) })
	n, err := driver.Attach(driver.FrontendOptions{Options: driver.Options{QueuePairs: g.pairs, HostQueues: 1}, Conn: front,
		MAC: net.HardwareAddr(g.mac[:]), GPUs: []driver.FrontendGPU{{ID: g.gpu.ID(), FD: g.gpu.FD(), Size: g.gpu.Size()}}})
	if err != nil {
		return nil, errors.Join(err, <-served)
	}
	d, err := attach(n, "nic"+g.dev.Port().Name(), r.Address)
	if err != nil {
		return nil, errors.Join(err, <-served)
	}
	d.Device = &closing{Device: d.Device, guest: g, served: served}
	if g.change != nil {
		g.change(d)
	}
	return d, nil
}

// run is one run of the tool.
type run struct {
	status   int
	out, err string
}

func (r run) String() string {
	return fmt.Sprintf("status %d\nstdout: %.200q\nstderr: %s", r.status, r.out, r.err)
}

// start runs the tool in guest i. line is closed once it has said that it waits for a connection.
func (w *world) start(ctx context.Context, i int, in string, args ...string) (done <-chan run, waiting <-chan struct{}) {
	d, listens := make(chan run, 1), make(chan struct{})
	go func() {
		var out bytes.Buffer
		e := watched{listens: listens}
		status := Main(ctx, args, Stdio{In: bytes.NewReader([]byte(in)), Out: &out, Err: &e}, w.guests[i].open)
		e.end()
		d <- run{status: status, out: out.String(), err: e.buf.String()}
	}()
	return d, listens
}

// watched closes listens when it is told of it, or at the end.
type watched struct {
	buf     bytes.Buffer
	once    sync.Once
	listens chan struct{}
}

func (w *watched) end() { w.once.Do(func() { close(w.listens) }) }

func (w *watched) Write(b []byte) (int, error) {
	if bytes.HasPrefix(b, []byte("Waiting for connection")) {
		defer w.end()
	}
	return w.buf.Write(b)
}

// both runs the receiver in guest 1 and the sender in guest 0.
func (w *world) both(in string, recv, send []string) (r, s run) {
	w.t.Helper()
	rd, listens := w.start(w.t.Context(), 1, "", append([]string{"recv"}, recv...)...)
	<-listens
	sd, _ := w.start(w.t.Context(), 0, in, append([]string{"send"}, send...)...)
	return <-rd, <-sd
}
