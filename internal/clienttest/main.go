package clienttest

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"syscall"
	"time"
)

const usage = `devmem-clients JOB [FLAG...]

Runs a client of device memory over the kernel's device memory TCP on an interface, and a dma-buf
that it maps. Needs root, a NIC with header split and flow rules, and /dev/udmabuf. It sets what it
needs to at the interface, and sets it back. JOB is one of:

  memory   the conformance suite of what works on GPU memory
  load     a file, from -url
  plain    the same file by an ordinary socket, to host memory
  nbd      all of an export of -server is read, written, and read again; -name is the export's
  nvme     the same of a namespace of an NVMe/TCP target at -server; -name is the subsystem's
  ring     an all-reduce with the other ranks

`

type options struct {
	name   string
	node   int
	limit  time.Duration
	url    string
	server netip.AddrPort
	remote string // name of the NBD export, or NQN of the NVMe subsystem
	ring   Ring
	job    string
}

// Main is the program's main function, and returns its exit status.
func Main(args []string) int {
	var o options
	fs := flag.NewFlagSet("devmem-clients", flag.ContinueOnError)
	fs.Usage = func() {
		fmt.Fprint(fs.Output(), usage)
		fs.PrintDefaults()
	}
	fs.StringVar(&o.name, "i", "eth0", "interface")
	fs.IntVar(&o.node, "node", -1, "NUMA node whose memory passes for the GPU's; -1: ordinary memory")
	fs.DurationVar(&o.limit, "limit", time.Minute, "how long the job may take")
	fs.StringVar(&o.url, "url", "", "the file's")
	fs.TextVar(&o.server, "server", netip.AddrPort{}, "address and port")
	fs.StringVar(&o.remote, "name", "", "of the export or subsystem")
	fs.IntVar(&o.ring.Rank, "rank", 0, "ours")
	fs.IntVar(&o.ring.Ranks, "ranks", 2, "how many")
	fs.TextVar(&o.ring.Listen, "listen", netip.AddrPort{}, "where the rank before connects")
	fs.TextVar(&o.ring.Next, "next", netip.AddrPort{}, "where the next rank listens")
	fs.IntVar(&o.ring.Count, "count", 1<<18, "integers to add up")
	if len(args) > 0 && args[0] != "" && args[0][0] != '-' {
		o.job, args = args[0], args[1:]
	}
	err := fs.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil || o.job == "" || fs.NArg() > 0:
		fmt.Fprintln(os.Stderr, "devmem-clients: JOB [FLAG...] is wanted; see -h")
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	r, err := run(ctx, &o)
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(r)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "devmem-clients: %s: %v\n", o.job, err)
		return 1
	}
	return 0
}

func run(ctx context.Context, o *options) (r Report, err error) {
	ctx, cancel := context.WithTimeout(ctx, o.limit)
	defer cancel()
	b, err := newBench(o.name, o.node)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	jobs := map[string]func() error{
		"memory": func() error { return b.cases(ctx, &r) },
		"load":   func() error { return b.load(ctx, o.url, &r) },
		"plain":  func() error { return b.plain(ctx, o.url, &r) },
		"nbd":    func() error { return b.nbd(ctx, o.server, o.remote, &r) },
		"nvme":   func() error { return b.nvme(ctx, o.server, o.remote, &r) },
		"ring":   func() error { return b.ring(ctx, o.ring, &r) },
	}
	job := jobs[o.job]
	if job == nil {
		return r, fmt.Errorf("no such job: %w", syscall.EINVAL)
	}
	err = job()
	r.Memory = b.memory.Stats()
	return r, err
}
