package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"vnic.dev/vnic/internal/job/load"
)

func loadCommand() *cobra.Command {
	o := load.Defaults()
	u := newUse("load", &o.Options, o.Complete)
	u.server = func(context.Context) (io.Closer, error) { return o.Serve() }
	c := &cobra.Command{
		Use:   "load [http://HOST[:PORT]/PATH]",
		Short: "Load a file from a web server into a guest's GPU: all of it, tensors, or batches of records",
		Long: `Load a file from a web server into the memory of a guest's GPU, by HTTP ranges over several connections: all of
it, the tensors of a safetensors file, or records that a consumer takes in batches, as a training loop does. Data
goes from the wire to the GPU; a CPU sees the heads of responses alone. Without a URL there is a server in this
process. HOST may be this machine, as localhost. A file that changes meanwhile is an error; a server that goes away
and comes back, or is too busy for a while, is not.`,
		Example: `  vnic load                                        64 MiB from a server of its own
  vnic load --format records --step 50ms           a consumer that needs 50 ms a batch: how long it waits for data
  vnic load --format safetensors --nic gve         tensors, by the kernel's TCP
  vnic load --mode both --guest inproc             beside it through the guest's RAM; without QEMU
  vnic load http://localhost:8080/model.safetensors
  vnic load http://data.example/train.bin --format records --record 150K --batch 256 --connections 8
  vnic load http://data.example/file --header 'Authorization: Bearer ...' --sha256 9f86d0...`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			o.URL = strings.Join(args, "") // Args allows at most one
			return runUse(u, c, func(ctx context.Context) (*load.Report, error) { return load.Do(ctx, &o) })
		},
	}
	f := c.Flags()
	f.StringVar(&o.Format, "format", "", fmt.Sprintf("%s, %s or %s (default: by the URL's end)", load.Raw, load.Records,
		load.Safetensors))
	f.IntVar(&o.Connections, "connections", o.Connections, "connections to the server")
	f.Var((*bytesFlag)(&o.RangeSize), "range", "bytes of a request at most")
	f.Var((*bytesFlag)(&o.Records), "record", "bytes of a record")
	f.Uint64Var(&o.Batch, "batch", o.Batch, "records of a batch")
	f.IntVar(&o.Depth, "prefetch", o.Depth, "batches that have a place in GPU memory: under way, there, or in use")
	f.Var((*bytesFlag)(&o.Skip), "skip", "bytes of the file before the first record")
	f.DurationVar(&o.Step, "step", 0, "how long the consumer needs for a batch")
	header := func(s string) error { return load.ParseHeader(o.Header, s) }
	f.Var(textFlag{"header", func() string { return "" }, header}, "header",
		"a header of each request, as 'NAME: VALUE'; once for each")
	f.StringVar(&o.SHA256, "sha256", "", "digest that what landed must have, in hexadecimal digits")
	f.Var((*bytesFlag)(&o.Size), "size", "without a URL: bytes of the file")
	f.DurationVar(&o.Timeout, "timeout", o.Timeout, "for how long a server that was asked may be silent")
	f.DurationVar(&o.Retry, "retry", o.Retry, "for how long, without a byte more, a server is tried again that is away "+
		"or answers 408, 429 or 5xx; Retry-After included")
	gatewayFlags(f, o.Gateway, "the URL's, if its host is this machine")
	u.flags(c)
	return c
}
