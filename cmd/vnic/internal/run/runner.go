package run

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"

	"vnic.dev/vnic/cmd/vnic/internal/broker"
	"vnic.dev/vnic/gpumem"
	"vnic.dev/vnic/internal/kernelnic"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/machine"
	"vnic.dev/vnic/internal/machine/qemu"
	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/transfer"
	"vnic.dev/vnic/internal/wire"
)

// end is one side of the lab.
type end struct {
	name   string
	opt    *Options
	log    *slog.Logger
	hw     *lab.Machine
	nic    *lab.Port
	gpu    *gpumem.GPU
	base   uint64             // where in the GPU's memory the transfer's part of it begins
	size   uint64             // of the window that a guest takes of a node
	window []kernelnic.Extent // where in the GPU's memory that is what the guest has of it
	port   *nic.Port
	ram    uint64 // of the guest's machine, if it is one of QEMU's
	cpus   int
	addrs  [2]netip.Prefix // IPv4 and IPv6
	device string          // what the guest calls the NIC; "": it has no other
	number int             // of the transfer.Node in the guest
	guest  transfer.Guest
	qemu   *machine.Guest // nil: an in-process guest
	close  []func() error // in reverse

	// digest digests memory that the guest has of its GPU: engineDigest.
	digest func(ctx context.Context, off, n uint64, hurry <-chan struct{}) (sum, error)
}

// runner is the lab, and its guests.
type runner struct {
	opt   *Options
	lab   *lab.Lab
	sw    *wire.Switch
	ends  [2]*end            // sender, receiver
	info  Report             // what is known of the guests
	wrong []error            // destinations that are not what was sent, the first byte of each round
	port  uint16             // the first that rounds use: Linux keeps those of a connection busy for a minute (TIME_WAIT)
	gate  *broker.Gate       // that QEMUs wait at; nil: none
	kept  *os.File           // Options.Keep's counters; nil: none
	rail  bool               // other transfers go on at the same NICs
	links tally              // what of links the mode has used
	stop  context.CancelFunc // ends guests that are still about to boot
	peer  *peer              // on the host that has the other end; nil: both are here
}

// describe is the lab of a run: two guests, sender and receiver, each with a NIC and a GPU.
func (o *Options) describe() (d lab.Description, err error) {
	models, err := o.models()
	if err != nil {
		return d, err
	}
	d.NoP2P = !o.P2P
	for i, name := range [2]string{"A", "B"} {
		d.Guests = append(d.Guests, lab.Guest{Name: name, Driver: o.GPUDriver, IOMMU: o.IOMMU,
			GPUs: []lab.GPU{{Memory: o.GPUMemory}},
			NICs: []lab.NIC{{Name: name, Model: models[i].Name, MTU: o.MTU, MaxMTU: o.MaxMTU, XDP: o.XDP, RSCUsecs: o.RSCUsecs,
				QueuePairs: o.queuePairs(models[i])}}})
	}
	d.Impair(o.Impairment)
	return d, o.sabotage(&d)
}

// newRunner makes GPUs, NICs and the switch; guests come after.
func newRunner(o *Options, p plan) (*runner, error) {
	d, err := o.describe()
	if err != nil {
		return nil, err
	}
	l, err := lab.Open(d, o.labOptions())
	if err != nil {
		return nil, err
	}
	r := &runner{opt: o, lab: l, sw: l.Switch(), port: basePort, stop: func() {}}
	if o.Confine != nil {
		r.gate = broker.NewGate(o.Broker, len(r.ends), o.Confine)
	}
	if o.Keep {
		if r.kept, err = o.keep("counters.json"); err != nil {
			return nil, errors.Join(err, l.Close())
		}
	}
	for i, hw := range l.Machines() {
		port := hw.Ports[0]
		r.ends[i] = &end{name: hw.Name, opt: o, log: o.Log, hw: hw, nic: port, gpu: port.GPU().GPU, size: p.window(),
			ram: o.Memory, port: port.NIC(), addrs: [2]netip.Prefix{port.Addr4, port.Addr6}}
		r.ends[i].digest = r.ends[i].engineDigest
	}
	return r, nil
}

func (e *end) onClose(f func() error) { e.close = append(e.close, f) }

func (e *end) addr(family int) netip.Prefix {
	if family == 6 {
		return e.addrs[1]
	}
	return e.addrs[0]
}

// away says whether the end is on another host. Nothing of it is here but its name and addresses.
func (e *end) away() bool { return e.hw == nil }

// here are the ends that are not away.
func (l *runner) here() []*end {
	return slices.DeleteFunc(slices.Clone(l.ends[:]), (*end).away)
}

// blame finds what is behind an error: an interruption, or a guest that is gone, explains whatever came of it.
func (l *runner) blame(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	err = l.blameRemoval(err)
	for _, e := range l.ends {
		if e.qemu == nil {
			continue
		}
		if gone := e.qemu.Gone("in the middle of the run"); gone != nil {
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
	return slices.ContainsFunc(l.ends[:], func(e *end) bool { return e.qemu != nil && e.qemu.Ended() })
}

// Close ends the guests, both at the same time, and then takes the lab down.
func (l *runner) Close() error {
	var errs [len(l.ends)]error
	var wg sync.WaitGroup
	for i, e := range l.ends {
		wg.Go(func() { errs[i] = e.Close() })
	}
	wg.Wait()
	l.stop()
	return errors.Join(errs[0], errs[1], l.lab.Close())
}

// Close calls the functions of onClose, the last first.
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
