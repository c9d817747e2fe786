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

	"vnic.dev/vnic/gpumem"
	"vnic.dev/vnic/guest-images/kernelnic"
	"vnic.dev/vnic/guest-images/transfer"
	"vnic.dev/vnic/lab"
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
	nic     *lab.Port
	gpu     *gpumem.GPU
	window  []kernelnic.Extent // where in the GPU's memory that is what the guest has of it
	port    *nic.Port
	guest   guest
	machine *qemu.Machine  // nil: an in-process guest
	blamed  bool           // machine's end is the run's error already
	close   []func() error // in reverse
}

// runner is the emulated world, and its guests.
type runner struct {
	opt   *Options
	world *lab.Lab
	sw    *wire.Switch
	ends  [2]*end // sender, receiver
	info  guestInfo
	stop  context.CancelFunc // ends guests that are still about to boot
}

type guestInfo struct {
	qemu, kernel, accel string
	untested            []string
	boot                time.Duration
	cpu                 bool // guests have a CPU time of their own
}

// farewell is how long a NIC waits until it has seen the end of the QEMU that it served.
const farewell = 2 * time.Second

// newRunner makes GPUs, NICs and the switch; guests come after.
func newRunner(o *Options) (*runner, error) {
	names := [2]string{"A", "B"}
	conf := lab.Options{NIC: o.NIC, QueuePairs: o.queuePairs(), MTU: o.MTU, GPUMemory: o.GPUMemory, NoP2P: !o.P2P, Log: o.Log,
		Services: o.Services}
	if !o.InProc {
		conf.Farewell = farewell
	}
	for i, name := range names {
		bad := wire.Impairment{Loss: o.Loss, Reorder: o.Reorder, Seed: o.Seed + uint64(i)}
		conf.Ports = append(conf.Ports, lab.PortOptions{Name: name, Link: wire.LinkOptions{Up: bad}})
	}
	w, err := lab.New(conf)
	if err != nil {
		return nil, err
	}
	l := &runner{opt: o, world: w, sw: w.Switch(), stop: func() {}}
	for i, name := range names {
		p := w.Port(i)
		l.ends[i] = &end{name: name, opt: o, log: o.Log, nic: p, gpu: p.GPU(), port: p.NIC()}
	}
	return l, nil
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
	if family == 6 {
		return e.nic.Addr6
	}
	return e.nic.Addr4
}

// blame finds what is behind an error: an interruption, or a guest that is gone, explains whatever came of it.
func (l *runner) blame(ctx context.Context, err error) error {
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
func (l *runner) gone() bool {
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

// Close ends the guests, both at the same time, and then takes the world down.
func (l *runner) Close() error {
	var errs [len(l.ends)]error
	var wg sync.WaitGroup
	for i, e := range l.ends {
		wg.Go(func() { errs[i] = e.Close() })
	}
	wg.Wait()
	l.stop()
	return errors.Join(errs[0], errs[1], l.world.Close())
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
