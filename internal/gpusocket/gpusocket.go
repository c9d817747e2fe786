// Package gpusocket gives programs of a guest memory of its GPU, if that is a NUMA node, as a GPU's
// driver would. The programs, in any language, use a Unix socket. The package is for programs that
// open Linux's devmem sockets themselves.
//
// A program connects to the socket at Path (unix(7), SOCK_SEQPACKET) and sends a size in bytes as 8
// bytes in the machine's byte order. The answer is a number of 4 bytes: 0, and with it, as
// SCM_RIGHTS, a descriptor of a dma-buf of that much zeroed GPU memory, for bind-rx, bind-tx and
// mmap; or an errno. Each request gives another dma-buf. The NIC treats the memory as the GPU's
// until the program closes the connection, or ends.
//
// The package has both ends: Ops registers the operation "gpu" with package agent, by which the
// agent serves the socket; the host calls it by Start. Applet is a tool that serves the socket in a
// guest without an agent. A program may send any bytes: it gets EINVAL, and the socket still serves
// other programs.
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

// Start makes a guest serve the memory of the GPU that the NIC of an interface reaches.
func Start(ctx context.Context, c *agent.Client, name string) error {
	return serveMemory.Do(ctx, c, args{name})
}

// Ops registers the operation. The server ends with the agent's process.
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

// open makes the socket, for the memory of the GPU that the NIC of an interface reaches.
func open(name string) (*server, error) {
	s, err := listen(Path, func(ctx context.Context, size uint64) (*memory, error) { return take(ctx, name, size) })
	if err != nil {
		return nil, err
	}
	s.log = func(err error) { fmt.Fprintln(os.Stderr, "vnic-guest: gpu:", err) }
	return s, nil
}

// Serve serves until ctx ends, without an agent.
func Serve(ctx context.Context, name string) error {
	s, err := open(name)
	if err == nil {
		s.serve(ctx)
	}
	return err
}

// take takes memory from the NIC.
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
