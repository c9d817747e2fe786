package main

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"vnic.dev/vnic/internal/job/rdma"
)

func rdmaCommand() *cobra.Command {
	o := rdma.Defaults()
	u := newUse("rdma", &o.Options, o.Complete)
	c := &cobra.Command{
		Use:   "rdma put|get",
		Short: "Write a guest's GPU from another's, or read it, over RoCEv2, while the one whose memory it is does nothing",
		Long: `Write the memory of guest 1's GPU from guest 0's (put), or read it (get), over RoCEv2 queue pairs. It is
one-sided: guest 0 asks its NIC, and guest 1 has told once which memory that may use. NICs carry out and acknowledge
packets, send again what is lost, and refuse what was not offered. The host compares every byte of GPU memory, and the
NICs count where payload lay at both ends. Path MTU is the largest that links have room for: 1024 with an MTU of 1500,
4096 with 9000.

Columns, in bytes that a NIC read from memory or wrote to it: device and GPU file (GPU memory that is registered, and
GPU memory that is not), host (the guest's RAM), bounced (of host: on its way to or from a GPU that the NIC does not
reach), moved again (of all of these: for packets that were sent again). Sent again, NAKs and timeouts count packets,
refusals, and times without an answer.`,
		Example: `  vnic rdma put                                two QEMU guests, 64 MiB
  vnic rdma get --guest inproc                 the other way round, without QEMU, in a second
  vnic rdma put --nic gve,virtio --mtu 9000    a NIC of each kind, large packets
  vnic rdma put --block 4K --qd 64 --qps 4     small work requests, many at a time
  vnic rdma put --loss 1%                      links that lose packets: go-back-N
  vnic rdma get --p2p off=1                    guest 1's NIC does not reach its GPU: only its host bytes rise
  vnic rdma put --mr gpu,ram                   beside it through the guests' RAM
  vnic rdma put --mr odp --pages 16384 --migrate 500 --time 1m   pages move between RAM and GPU meanwhile
  vnic rdma put --guest inproc --pcap rdma.pcapng   for tshark and Wireshark`,
		ValidArgs: []string{rdma.Put, rdma.Get},
		Args:      cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef(c, "%s: which? put writes guest 1's memory, get reads it",
					strings.TrimSpace("vnic rdma "+strings.Join(args, " ")))
			}
			o.Op = args[0]
			return runUse(u, c, func(ctx context.Context) (*rdma.Report, error) { return rdma.Do(ctx, &o) })
		},
	}
	f := c.Flags()
	f.Var((*bytesFlag)(&o.Size), "size", "bytes of a round")
	f.Var((*bytesFlag)(&o.Block), "block", "bytes of a work request")
	f.IntVar(&o.Depth, "qd", o.Depth, "work requests of a queue pair at a time")
	f.IntVar(&o.QPs, "qps", o.QPs, "queue pairs that share the bytes")
	f.IntVar(&o.Rounds, "rounds", o.Rounds, "how often, each with other bytes")
	f.IntVar(&o.PathMTU, "path-mtu", 0,
		"payload of a packet: 256, 512, 1024, 2048 or 4096 (default: the largest that fits --mtu)")
	f.StringSliceVar(&o.MRs, "mr", o.MRs,
		"what memory regions are of: gpu; ram (through guest RAM, as a baseline); odp (guest 1's: pages on demand, of a "+
			"program, that the GPU's driver moves between RAM and GPU); or several with commas between")
	f.IntVar(&o.Pages, "pages", 0, "--mr odp: how many, of 4096 bytes, in place of --size")
	f.Float64Var(&o.Migrate, "migrate", 0, "--mr odp: pages a second that are moved meanwhile, to the GPU or back")
	f.BoolVar(&o.Compact, "compact", false, "--mr odp: and Linux moves those that are in RAM, four times a second")
	f.DurationVar(&o.Time, "time", 0, "--mr odp: rounds for that long")
	f.StringVar(&o.Fault, "fault", "", "--mr odp: what guest 1's NIC does wrong: never-ack, late-ack=TIME, "+
		"lose-answers=N, "+
		"or stale (it goes on using pages that it has let go of); or what happens to these: remove-gpu=TIME, kill=TIME (of "+
		"the program that has them), bad-page=PAGE (its memory is broken); or several with commas between")
	f.BoolVar(&o.Verify, "verify", o.Verify, "compare every byte, and digest both ends")
	u.flags(c)
	return c
}
