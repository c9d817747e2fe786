package main

import (
	"context"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"vnic.dev/vnic/internal/job/block"
)

func blockCommand() *cobra.Command {
	o := block.Defaults()
	u := newUse("block", &o.Options, o.Complete)
	var peer *block.Peer
	u.server = func(ctx context.Context) (_ io.Closer, err error) {
		peer, err = o.Peer(ctx)
		return peer, err
	}
	c := &cobra.Command{
		Use:   "block [nvme-tcp://HOST[:PORT]/NQN[?nsid=N] | nbd://HOST[:PORT]/[EXPORT]]",
		Short: "Read blocks of a remote device into a guest's GPU and write them from there, over NVMe/TCP or NBD",
		Long: `Read blocks of a remote device into the memory of a guest's GPU, and write them from there, over NVMe/TCP or
NBD. Data goes from the wire to the GPU and back; of what is read a CPU sees the heads of messages alone. The host
compares what is in GPU memory, and what is on the device. Without an address there is a server: Linux's own
NVMe/TCP target in a second guest, or nbdkit for a guest in this process. HOST may be this machine, as localhost.`,
		Example: `  vnic block                                     read, write and read back, from Linux's NVMe/TCP target
  vnic block --bs 4K --qd 64 --random            small operations, many at a time
  vnic block --nic gve --mode both               the kernel's TCP; beside it through the guest's RAM
  vnic block nvme-tcp://storage/nqn.2026-01.org.example:disk0 --read --size 1G
  vnic block nbd://localhost/ --write --verify   write to an NBD server of this machine, and read it back
  nbdkit pattern size=1G; vnic block nbd://localhost/ --content nbdkit-pattern --guest inproc`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			o.URL = strings.Join(args, "") // Args allows at most one
			return runUse(u, c, func(ctx context.Context) (*block.Report, error) { return block.Do(ctx, &o, peer) })
		},
	}
	f := c.Flags()
	f.BoolVar(&o.Read, "read", false, "read (default without any of the three)")
	f.BoolVar(&o.Write, "write", false, "write a pattern of the seed: what the device has is lost")
	f.BoolVar(&o.Verify, "verify", false, "read back what was written, and compare it; or with --read see --content")
	f.Var((*bytesFlag)(&o.Size), "size", "bytes to read and to write, each")
	f.Var((*bytesFlag)(&o.Offset), "offset", "where on the device they begin")
	f.Var((*bytesFlag)(&o.Block), "bs", "bytes of an operation")
	f.IntVar(&o.Depth, "qd", o.Depth, "operations at a time")
	f.BoolVar(&o.Random, "random", false, "in random order, each once")
	f.StringVar(&o.Content, "content", "", "what the device is known to have: nbdkit-pattern, of nbdkit's plugin pattern")
	f.DurationVar(&o.Timeout, "timeout", o.Timeout, "for how long a server that was asked may be silent")
	u.flags(c)
	return c
}
