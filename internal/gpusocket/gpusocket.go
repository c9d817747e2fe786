// Package gpusocket hands out memory of a guest's GPU, as a GPU's driver would, to programs in the guest that
// open Linux's devmem sockets themselves.
//
// A program connects to the socket at [Path] (unix(7), SOCK_SEQPACKET) and sends a size in bytes, a multiple of
// 4096, as 8 bytes in the machine's byte order. The answer is a number of 4 bytes: 0, and with it, as SCM_RIGHTS, a
// descriptor of a dma-buf of that much zeroed GPU memory, for bind-rx, bind-tx and mmap; or an errno, after which
// the connection continues. The memory is reserved for the program, and registered with the NIC as device memory,
// until the program closes the connection or ends, or the server ends.
//
// [Ops] registers the operation "gpu" with package agent, by which a guest's agent serves the socket.
// [Applet] is a tool that serves the socket in a guest without an agent.
package gpusocket

import (
	"context"
	"fmt"
	"os"

	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/kernelnic"
)

// Path is the socket's path in a guest.
const Path = "/run/vnic-gpu"

var serveMemory = agent.NewOperation[args, agent.None]("gpu")

type args struct {
	Interface string `json:"interface"`
}

// Start makes the guest of c serve, at [Path], memory of the first GPU that the guest sees and that the NIC of
// interface name reports.
func Start(ctx context.Context, c *agent.Client, name string) error {
	return serveMemory.Do(ctx, c, args{name})
}

// Ops registers the operation "gpu". The server that it starts runs until the agent's process ends.
func Ops() {
	serveMemory.Serve(func(_ context.Context, a args) (none agent.None, err error) {
		s, err := open(a.Interface)
		if err != nil {
			return none, err
		}
		go s.serve(context.Background())
		return none, nil
	})
}

func open(name string) (*server, error) {
	s, err := listen(Path, func(ctx context.Context, size uint64) (*memory, error) { return take(ctx, name, size) })
	if err != nil {
		return nil, err
	}
	s.log = func(err error) { fmt.Fprintln(os.Stderr, "vnic-guest: gpu:", err) }
	return s, nil
}

// Serve serves the socket, for the NIC of the interface name, until ctx ends, or accept fails, which it logs only.
func Serve(ctx context.Context, name string) error {
	s, err := open(name)
	if err == nil {
		s.serve(ctx)
	}
	return err
}

func take(ctx context.Context, name string, size uint64) (*memory, error) {
	n, err := kernelnic.Open(ctx, kernelnic.Options{Interface: name, Window: size, MemoryOnly: true})
	if err != nil {
		return nil, err
	}
	fd, release, err := n.Export(int(n.GPU().ID), 0, size)
	if err != nil {
		_ = n.Close()
		return nil, err
	}
	return &memory{fd, func() error {
		if err := release(); err != nil {
			return err
		}
		return n.Close()
	}}, nil
}
