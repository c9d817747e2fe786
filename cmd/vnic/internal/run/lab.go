package run

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/control"
	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/gpumem"
	"vnic.dev/vnic/guest-images/kernelnic"
	"vnic.dev/vnic/guest-images/transfer"
	"vnic.dev/vnic/nic"
	"vnic.dev/vnic/qemu"
	"vnic.dev/vnic/wire"
)

// guest is one guest's end of a transfer: transfer.Node, here or behind the results channel.
type guest interface {
	Prepare(ctx context.Context, p transfer.Prepare) error
	Listen(ctx context.Context) error
	Connect(ctx context.Context) error
	Accept(ctx context.Context) error
	Receive(ctx context.Context) (transfer.Result, error)
	Send(ctx context.Context) (transfer.Result, error)
	State(ctx context.Context) string
	Finish(ctx context.Context) error
}

// end is one side of the lab.
type end struct {
	name    string
	opt     *Options
	log     *slog.Logger
	mac     wire.MAC
	gpu     *gpumem.GPU
	window  []kernelnic.Extent // where in the GPU's memory that is what the guest has of it
	dev     device
	port    *nic.Port
	ctx     context.Context // of serve: the lab's life
	serving sync.WaitGroup
	guest   guest
	machine *qemu.Machine  // nil: an in-process guest
	blamed  bool           // machine's end is the run's error already
	close   []func() error // in reverse
}

// lab is the emulated world.
type lab struct {
	opt   *Options
	files *dma.Files
	sw    *wire.Switch
	ends  [2]*end // sender, receiver
	info  labInfo
	stop  context.CancelFunc // ends guests that are still about to boot
}

type labInfo struct {
	qemu, kernel, accel string
	untested            []string
	boot                time.Duration
	cpu                 bool // guests have a CPU time of their own
}

// newLab makes GPUs, NICs and the switch; guests come after.
func newLab(o *Options) (l *lab, err error) {
	l = &lab{opt: o, files: dma.NewFiles(), sw: wire.NewSwitch(o.Log), stop: func() {}}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.Close())
		}
	}()
	tree := gpumem.NewTopology()
	if err := tree.AddRoot("rc0", false); err != nil {
		return l, err
	}
	for i, name := range [2]string{"A", "B"} {
		e := &end{name: name, opt: o, log: o.Log, mac: wire.MAC{0x02, 0x76, 0x6e, 0x69, 0x00, byte(i + 1)}}
		l.ends[i] = e
		sw, n, g := "sw"+name, "nic"+name, "gpu"+name
		if err := errors.Join(tree.AddSwitch(sw, "rc0", false), tree.AddDevice(n, sw), tree.AddDevice(g, sw)); err != nil {
			return l, err
		}
		tree.SetOff(!o.P2P)
		path, err := tree.Path(n, g)
		if err != nil {
			return l, err
		}
		if e.gpu, err = gpumem.NewGPU(l.files, i, o.GPUMemory, gpumem.Options{Name: "vnic-gpu" + name}); err != nil {
			return l, noRoom(o, err)
		}
		e.defers(e.gpu.Close)
		if e.dev, err = o.newDevice(l.files, nic.Config{Name: name, MAC: e.mac, MTU: uint16(o.MTU), QueuePairs: o.queuePairs(), Log: o.Log,
			GPUs: []nic.GPU{{GPU: e.gpu, Path: path, Info: control.GPUInfo{Place: tree.Place(g)}}}}); err != nil {
			return l, err
		}
		e.port = e.dev.Port()
		e.defers(func() error { e.dev.Close(); return nil })
		bad := wire.Impairment{Loss: o.Loss, Reorder: o.Reorder, Seed: o.Seed + uint64(i)}
		if err := e.port.Attach(l.sw, wire.LinkOptions{Up: bad}); err != nil {
			return l, err
		}
		var cancel context.CancelFunc
		e.ctx, cancel = context.WithCancel(context.Background())
		e.defers(func() error { e.endServing(cancel); return nil })
	}
	return l, nil
}

// serve has the NIC speak its protocol on a connection, until that or the lab ends.
func (e *end) serve(conn *net.UnixConn) {
	e.serving.Add(1)
	dma.Go(func() {
		defer e.serving.Done()
		if err := e.dev.Serve(e.ctx, conn); err != nil && e.ctx.Err() == nil {
			e.log.Error("connection to QEMU", "port", e.name, "err", err)
		}
	})
}

// endServing waits until serve has ended: by itself when it was QEMU that it served, as that is gone, though the end of the
// connection may be seen a moment later; else because it is told to.
func (e *end) endServing(cancel context.CancelFunc) {
	defer cancel()
	ended := make(chan struct{})
	go func() {
		e.serving.Wait()
		close(ended)
	}()
	if !e.opt.InProc {
		select {
		case <-ended:
		case <-time.After(2 * time.Second):
		}
	}
	cancel()
	<-ended
}

// socketPair makes a connected pair of sockets.
func socketPair() (a, b *net.UnixConn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	var conns [2]*net.UnixConn
	var errs [2]error
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "vhost-user")
		var c net.Conn
		if c, errs[i] = net.FileConn(f); errs[i] == nil {
			conns[i] = c.(*net.UnixConn)
		}
		_ = f.Close()
	}
	if err := errors.Join(errs[0], errs[1]); err != nil {
		for _, c := range conns {
			if c != nil {
				_ = c.Close()
			}
		}
		return nil, nil, err
	}
	return conns[0], conns[1], nil
}

func (e *end) defers(f func() error) { e.close = append(e.close, f) }

func (e *end) addr(family int) netip.Prefix {
	n := byte(1)
	if e.name == "B" {
		n = 2
	}
	if family == 6 {
		a := netip.MustParseAddr("fd76:6e69::").As16()
		a[15] = n
		return netip.PrefixFrom(netip.AddrFrom16(a), 64)
	}
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 118, 110, n}), 24)
}

// noRoom makes of a lack of memory something that the machine lacks.
func noRoom(o *Options, err error) error {
	for _, e := range []error{unix.ENOSPC, unix.ENOMEM, unix.EFBIG, unix.EDQUOT} {
		if errors.Is(err, e) {
			return &qemu.Missing{What: "--gpu-memory " + FormatBytes(o.GPUMemory), Err: err, Fix: "each of two GPUs takes that much: free some, or name less"}
		}
	}
	return err
}

// blame finds what is behind an error: an interruption, or a guest that is gone, explains whatever came of it.
func (l *lab) blame(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	for _, e := range l.ends {
		if e.machine == nil {
			continue
		}
		if gone := ended(e.machine); gone != nil {
			e.blamed = true
			return fmt.Errorf("%w\nwhat it ended: %w\n%s", gone, err, advice(gone))
		}
	}
	return err
}

// advice says what can be done about a guest that ended.
func advice(err error) string {
	var e *qemu.RunError
	if errors.As(err, &e) && errors.Is(e, qemu.ErrExited) && strings.Contains(e.Detail, "signal: killed") {
		return "if nobody killed it, the machine ran out of memory: free some, or name less (--memory, --gpu-memory)"
	}
	return "--keep keeps all that its console says"
}

// gone says whether a guest has ended.
func (l *lab) gone() bool {
	return slices.ContainsFunc(l.ends[:], func(e *end) bool {
		if e.machine == nil {
			return false
		}
		select {
		case <-e.machine.Done():
		case <-e.machine.Agent().Done():
		default:
			return false
		}
		return true
	})
}

// ended gives the error of a machine that has ended, or whose agent has.
func ended(m *qemu.Machine) error {
	select {
	case <-m.Done():
	case <-m.Agent().Done(): // QEMU's own end, if it is that, is seen a moment later
		select {
		case <-m.Done():
		case <-time.After(2 * time.Second):
			return m.Close()
		}
	default:
		return nil
	}
	if err := m.Wait(); err != nil {
		return err
	}
	return &qemu.RunError{Name: m.Name(), Err: errPowerOff}
}

var errPowerOff = errors.New("powered off in the middle of the run")

// Close ends the guests, then their NICs, then their GPUs: both sides at the same time.
func (l *lab) Close() error {
	var errs [len(l.ends)]error
	var wg sync.WaitGroup
	for i, e := range l.ends {
		if e != nil {
			wg.Go(func() { errs[i] = e.Close() })
		}
	}
	wg.Wait()
	l.stop()
	return errors.Join(errs[0], errs[1], l.sw.Close())
}

// Close undoes what defers has noted.
func (e *end) Close() error {
	var errs []error
	for _, f := range slices.Backward(e.close) {
		if err := f(); err != nil {
			errs = append(errs, err)
		}
	}
	e.close = nil
	return errors.Join(errs...)
}
