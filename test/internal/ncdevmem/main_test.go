// Package ncdevmem runs ncdevmem, the kernel's own test of devmem TCP, as receiver and sender over
// vnic's gVNIC, and checks the results. The guest is a stock kernel with its own gve driver in
// QEMU; the peer is a TCP stack in this process, on a virtio NIC. ncdevmem's exit status is not
// sufficient (docs/specs/devmem.md, 6: it accepts up to 20 wrong bytes, and no bytes at all), so the
// tests also check:
//   - bytes: the peer compares the bytes that ncdevmem sends. Of the bytes that ncdevmem receives,
//     ncdevmem validates each frag itself, or prints them, and the test compares every byte.
//   - place: the NIC's meter of the connection counts payload bytes by the memory from which they were read or
//     to which they were written. Independently of meters, the test searches the GPU's memory for received bytes,
//     and guest RAM for pages full of ncdevmem's pattern.
//   - negative controls: the same program with a buffer that is not the GPU's memory, and, with a NUMA node as
//     GPU, a plain sender.
package ncdevmem

import (
	"context"
	"testing"
	"time"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// timeLimit is how long the guest may run.
const timeLimit = 5 * time.Minute

// A NUMA node is the guest's GPU.
//
// Invariant: vnic run: Linux's own ncdevmem receives and sends over the NIC, and every byte is compared.
func TestKernelsOwnTestOfDevmem(t *testing.T) {
	testkit.Boots(t)
	newBench(t, lab.DriverNode).judged(t, (*bench).cases)
}

// Invariant: vnicgpu: Linux's own ncdevmem receives into and sends from a dma-buf of the driver's, of a GPU that is a
// PCI device below the NIC's switch.
func TestKernelsOwnTestOfDevmemOnADriversGPU(t *testing.T) {
	testkit.Boots(t)
	newBench(t, lab.DriverVNICGPU).judged(t, (*bench).driverCases)
}

func (l *bench) judged(t *testing.T, cases func(*bench, context.Context, *judge) error) {
	t.Helper()
	j := &judge{out: t.Output()}
	testkit.OK(t, cases(l, t.Context(), j))
	if j.failed > 0 {
		t.Errorf("%d conditions do not hold", j.failed)
	}
	if err := l.machine.PowerOff(t.Context()); err != nil { // the guest must still be able to power off
		t.Error(err)
	}
}

// Bytes of a reception that ncdevmem validates, and of a reception that the test compares.
const received, compared uint64 = 64 << 20, 64 << 20

const sent = 4 << 20 // bytes of /data

// patternAfter comes before the negative control, which puts pages of the pattern into guest RAM.
func (l *bench) cases(ctx context.Context, j *judge) error {
	receive, send := l.steps()
	return l.run(ctx, j,
		l.patternBefore,
		receive(receiving{name: "receive, IPv4",
			port: 5201, size: received, queue: 1, queues: 1, validate: true, onGPU: true}),
		receive(receiving{name: "receive, IPv6",
			port: 5202, v6: true, size: received, queue: 2, queues: 2, validate: true, onGPU: true, client: true}),
		l.patternAfter,
		receive(receiving{name: "receive and compare, IPv4",
			port: 5203, size: compared, queue: 3, queues: 1, onGPU: true, client: true, seed: 4}),
		receive(receiving{name: "receive and compare, IPv6",
			port: 5204, v6: true, size: compared, queue: 1, queues: 1, onGPU: true, seed: 6}),
		send(sending{name: "send, IPv4", port: 5205, onGPU: true}),
		send(sending{name: "send in pieces of 1000 bytes, IPv6", port: 5206, v6: true, chunk: 1000, onGPU: true}),
		send(sending{name: "negative control: a plain sender", port: 5207, plain: true, onGPU: true}),
		receive(receiving{name: "negative control: receive, buffer not the GPU's memory",
			port: 5208, size: received, queue: 1, queues: 1, validate: true}),
		l.patternControl,
		send(sending{name: "negative control: send, buffer not the GPU's memory", port: 5209}),
		l.kernelLog)
}

func (l *bench) driverCases(ctx context.Context, j *judge) error {
	receive, send := l.steps()
	return l.run(ctx, j,
		l.patternBefore,
		receive(receiving{name: "receive and compare, IPv4",
			port: 5203, size: compared, queue: 3, queues: 1, onGPU: true, client: true, seed: 4}),
		send(sending{name: "send, IPv4", port: 5205, onGPU: true}),
		receive(receiving{name: "negative control: receive, buffer not the GPU's memory",
			port: 5208, size: received, queue: 1, queues: 1, validate: true}),
		l.patternControl,
		l.kernelLog)
}

// steps returns functions that make a step from the parameters of a transfer.
func (l *bench) steps() (func(receiving) step, func(sending) step) {
	receive := func(r receiving) step {
		return func(ctx context.Context, j *judge) error { return l.receive(ctx, j, r) }
	}
	send := func(s sending) step {
		return func(ctx context.Context, j *judge) error { return l.send(ctx, j, s) }
	}
	return receive, send
}

type step func(context.Context, *judge) error

func (l *bench) run(ctx context.Context, j *judge, steps ...step) error {
	for _, step := range steps {
		if err := step(ctx, j); err != nil {
			return err
		}
	}
	return nil
}
