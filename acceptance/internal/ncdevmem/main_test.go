// Command ncdevmem has the kernel's own test of devmem TCP receive and send over a gVNIC of ours, and judges what came of
// it. The guest is a stock kernel with its own gve driver in QEMU; the peer is a TCP stack in this process, on a virtio NIC,
// on the same switch.
//
//	ncdevmem DIR    DIR is what tools/ncdevmem built
//
// It trusts ncdevmem's exit status with little (specs/devmem.md section 6: 20 wrong bytes pass, so does an end after none):
//
//   - bytes: the peer compares every byte of what ncdevmem says that it found in its buffer (its standard output comes back
//     over an ordinary connection), and of what it sends. ncdevmem's own validation is run besides.
//   - place: the NIC's meter of the connection says from which file each payload byte was read, and to which it was written.
//     ncdevmem registers no buffer, so these are counts of the GPU's file, whatever in it. Independently of meters, the
//     host looks for the bytes themselves in the GPU's memory and in guest RAM.
//   - negative controls: the same program whose buffer is not on the GPU's node, and a plain sender beside one that is.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// timeLimit ends what hangs: all of it takes a minute.
const timeLimit = 5 * time.Minute

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, timeLimit)
	defer cancel()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "ncdevmem:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) (err error) {
	if len(args) != 1 {
		return errors.New("usage: ncdevmem DIR")
	}
	l, err := newLab(ctx, args[0])
	defer func() { err = errors.Join(err, l.Close()) }()
	if err != nil {
		return err
	}
	j := &judge{out: os.Stdout}
	if err := l.cases(ctx, j); err != nil {
		return err
	}
	if err := l.shutDown(ctx); err != nil {
		return err
	}
	if j.failed > 0 {
		return fmt.Errorf("%d conditions do not hold", j.failed)
	}
	return nil
}

// Sizes of the transfers.
const (
	received = 64 << 20 // as the issue has it
	compared = 64 << 20 // what ncdevmem prints comes back over an ordinary connection
	sent     = 4 << 20
)

// cases runs all that there is. Their order matters: pages of the pattern are looked for in guest RAM before anything may
// put them there.
func (l *lab) cases(ctx context.Context, j *judge) error {
	steps := []func() error{
		func() error { return l.patternBefore(j) },
		func() error {
			return l.receive(ctx, j, receiving{name: "receive, IPv4", port: 5201, size: received, queue: 1, queues: 1, validate: true, node: true})
		},
		func() error {
			return l.receive(ctx, j, receiving{name: "receive, IPv6", port: 5202, v6: true, size: received, queue: 2, queues: 2, validate: true, node: true, client: true})
		},
		func() error { return l.patternAfter(j) },
		func() error {
			return l.receive(ctx, j, receiving{name: "receive and compare, IPv4", port: 5203, size: compared, queue: 3, queues: 1, node: true, client: true, seed: 4})
		},
		func() error {
			return l.receive(ctx, j, receiving{name: "receive and compare, IPv6", port: 5204, v6: true, size: compared, queue: 1, queues: 1, node: true, seed: 6})
		},
		func() error { return l.send(ctx, j, sending{name: "send, IPv4", port: 5205, node: true}) },
		func() error {
			return l.send(ctx, j, sending{name: "send in pieces of 1000 bytes, IPv6", port: 5206, v6: true, chunk: 1000, node: true})
		},
		func() error {
			return l.send(ctx, j, sending{name: "negative control: a plain sender", port: 5207, plain: true, node: true})
		},
		func() error {
			return l.receive(ctx, j, receiving{name: "negative control: receive, buffer not on the GPU's node", port: 5208, size: received, queue: 1, queues: 1, validate: true})
		},
		func() error { return l.patternControl(j) },
		func() error {
			return l.send(ctx, j, sending{name: "negative control: send, buffer not on the GPU's node", port: 5209})
		},
		func() error { return l.kernelLog(ctx, j) },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}
