// Package gpusocket gives the programs of a guest memory of its GPU where that is a NUMA node's, as
// a GPU's driver would: by a Unix socket, in any language. It is for those that open devmem sockets
// of Linux's themselves.
//
// A program connects to the socket at Path (unix(7), SOCK_SEQPACKET) and sends a size in bytes,
// eight of them, in the machine's order. The answer is a number of four bytes: 0, and with it, as
// SCM_RIGHTS, a descriptor of a dma-buf of that much GPU memory, zeroed, which bind-rx, bind-tx and
// mmap take; or an errno. Another request gives another dma-buf. The NIC takes the memory for the
// GPU's until the program closes the connection, or ends.
//
// It is both ends: Ops registers the operation "gpu" with package agent, which has the agent serve;
// Start is the host's call of it. Applet is the tool of that name, for guests of other people's. A
// program may send what it likes: it gets EINVAL, and others are served.
package gpusocket

import (
	"context"
	"fmt"
	"os"

	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/kernelnic"
)

// Path is where the socket is in a guest.
const Path = "/run/vnic-gpu"

var serveMemory = agent.NewOperation[args, agent.None]("gpu")

type args struct {
	Interface string `json:"interface"`
}

// Start has a guest serve, from now on: the memory of the GPU that the NIC of one of its interfaces reaches.
func Start(ctx context.Context, c *agent.Client, name string) error {
	return serveMemory.Do(ctx, c, args{name})
}

// Ops registers the operation. What serves ends with the agent's process.
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

// Serve serves until ctx ends, where there is no agent.
func Serve(ctx context.Context, name string) error {
	s, err := open(name)
	if err == nil {
		s.serve(ctx)
	}
	return err
}

// take gets memory from the NIC.
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
