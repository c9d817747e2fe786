package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"vnic.dev/vnic/internal/job/allreduce"
	"vnic.dev/vnic/internal/report/show"
	"vnic.dev/vnic/internal/session"
	"vnic.dev/vnic/internal/transfer"
)

func allreduceCommand() *cobra.Command {
	o := allreduce.Defaults()
	u := newUse("allreduce", &o.Options, o.Complete)
	u.progress = (*show.UI).Sizes
	c := &cobra.Command{
		Use:   "allreduce",
		Short: "Add up the memory of guests' GPUs on a ring, in nccl-tests' columns, and prove where bytes went",
		Long: `Add up the memory of several guests' GPUs on a ring, as data parallel training does with gradients. Each guest
is a rank; what ranks exchange goes from GPU memory to GPU memory, and GPUs' engines add it up. The host compares
every element with a reference of its own, and the NICs count where payload lay. The output is nccl-tests'.`,
		Example: `  vnic allreduce                                two QEMU guests, 1 to 16 MiB of floats
  vnic allreduce --guest inproc --guests 4      the same without QEMU, in a second
  vnic allreduce --guests 4 --nic gve,gve,virtio   a ring of both kinds of NIC
  vnic allreduce -g 4 -b 8 -e 64M -f 2 -n 20 -w 5 -o sum   nccl-tests' flags
  vnic allreduce --mode both                    beside it through the guests' RAM
  vnic allreduce --loss 1%                      links that lose segments
  vnic allreduce --p2p off=1                    rank 1's NIC does not reach its GPU: only its host bytes rise
  vnic allreduce --op all_gather --dtype bfloat16`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 0 && c.Flags().Changed("check") { // nccl-tests accepts -c 0; here 0 is an argument of its own
				return usagef(c, "-c %s: write -c=%s", args[0], args[0])
			}
			return cobra.NoArgs(c, args)
		},
		RunE: func(c *cobra.Command, _ []string) error {
			if err := sizes(c, &o); err != nil {
				return err
			}
			return runUse(u, c, func(ctx context.Context) (*allreduce.Report, error) { return allreduce.Do(ctx, &o) })
		},
	}
	f := c.Flags()
	f.IntVarP(&o.Guests, "guests", "g", o.Guests,
		fmt.Sprintf("guests, each a rank (1 to %d; default with --lab: all)", session.MaxGuests))
	f.VarP((*bytesFlag)(&o.Min), "minbytes", "b", "the smallest size")
	f.VarP((*bytesFlag)(&o.Max), "maxbytes", "e", "the largest size")
	f.Uint64VarP(&o.Factor, "stepfactor", "f", o.Factor, "from one size to the next")
	counts := func() string { return strings.Trim(strings.ReplaceAll(fmt.Sprint(o.Counts), " ", ","), "[]") }
	f.Var(textFlag{"list", counts, func(s string) error { return addCounts(&o.Counts, s) }}, "count",
		"numbers of elements, with commas between, in place of sizes")
	f.IntVarP(&o.Iters, "iters", "n", o.Iters, "operations of a size that are timed")
	f.IntVarP(&o.Warmup, "warmup-iters", "w", o.Warmup, "operations before, which are not")
	f.BoolVarP(&o.Validate, "check", "c", o.Validate, "compare every element")
	names := strings.Join(slices.Sorted(maps.Keys(allreduce.Types)), ", ")
	f.VarP(textFlag{"type", func() string { return o.Type.String() }, func(s string) error {
		if _, known := allreduce.Types[s]; !known {
			return fmt.Errorf("GPUs here add up %s", names)
		}
		o.Type = allreduce.Types[s]
		return nil
	}}, "dtype", "d", "type of the elements: "+names)
	setOp := func(s string) (err error) { o.Op, err = parseOp(s); return err }
	f.VarP(textFlag{"string", func() string { return o.Op }, setOp}, "op", "o", "operation: "+
		strings.Join(allreduce.Ops, ", ")+"; sum, nccl-tests' word for what is done with elements, is all_reduce")
	f.IntVarP(&o.Root, "root", "r", 0, "rank that a broadcast is from")
	f.IntVar(&o.Channels, "channels", o.Channels, "rings that share each operation, each with a queue and a connection")
	f.DurationVar(&o.Timeout, "timeout", o.Timeout,
		"for how long a rank waits for a neighbour of which there is neither byte nor acknowledgment")
	u.flags(c)
	f.SetNormalizeFunc(ncclName)
	c.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		if s := err.Error(); strings.HasPrefix(s, "unknown ") {
			err = fmt.Errorf("%w; of nccl-tests' flags there are -g (--guests: each is a rank with a GPU), -b, -e, -f, -n, "+
				"-w, -c, -o, -d and -r", err)
		}
		return misuse(c, err)
	})
	return c
}

// sizes refuses --count with --minbytes or --maxbytes, and --root for an operation other than broadcast. If only one
// of --minbytes and --maxbytes is given, and the range would be empty, it sets the other one to the same value.
func sizes(c *cobra.Command, o *allreduce.Options) error {
	if c.Flags().Changed("count") && (c.Flags().Changed("minbytes") || c.Flags().Changed("maxbytes")) {
		return usagef(c, "--count and --minbytes or --maxbytes: one says how many elements there are")
	}
	if c.Flags().Changed("minbytes") && !c.Flags().Changed("maxbytes") {
		o.Max = max(o.Max, o.Min)
	}
	if c.Flags().Changed("maxbytes") && !c.Flags().Changed("minbytes") {
		o.Min = min(o.Max, o.Min)
	}
	if c.Flags().Changed("root") && o.Op != transfer.Broadcast {
		return usagef(c, "--root is of --op %s", transfer.Broadcast)
	}
	return nil
}

// ncclName returns vnic's name for a flag that has another name in nccl-tests, and replaces each _ by -.
func ncclName(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	switch name {
	case "ngpus":
		name = "guests"
	case "datatype":
		name = "dtype"
	}
	return pflag.NormalizedName(strings.ReplaceAll(name, "_", "-"))
}

// parseOp translates nccl-tests' sum to all_reduce, and refuses the other values of nccl-tests' -o. It returns any
// other word unchanged.
func parseOp(s string) (string, error) {
	switch s {
	case "sum":
		s = transfer.AllReduce
	case "prod", "min", "max", "avg", "mulsum", "all":
		return "", fmt.Errorf("GPUs here add up: sum, or one of %s", strings.Join(allreduce.Ops, ", "))
	}
	return s, nil
}

func addCounts(list *[]uint64, s string) error {
	for word := range strings.SplitSeq(s, ",") {
		n, err := strconv.ParseUint(word, 10, 64)
		if err != nil {
			return fmt.Errorf("%q is no number of elements", word)
		}
		*list = append(*list, n)
	}
	return nil
}
