package devmemtool

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"vnic.dev/vnic/internal/limits"
)

const help = `  On the receiving guest:   devmem recv -s 10.0.0.2 -p 5201 -v 7
  On the sending guest:     devmem send -s 10.0.0.2 -c 10.0.0.1 -p 5201 -v 7 -b 256M
  Any bytes:                echo hello | devmem send -s 10.0.0.2 -c 10.0.0.1 -p 5201
                            devmem recv -s 10.0.0.2 -p 5201 > received
  One flow, two queues:     devmem recv -s fd00::2/64 -c fd00::1 -p 5201 -t 1 -q 2

Netcat for device memory TCP: payload goes from one guest's GPU memory to another's. The flags are ncdevmem's, but for
-b, -g, -w, -d and -H. In a guest of vnic boot or vnic image, -f and our own address need not be given, and -s and -c
may be a guest's name: recv -p 5201 on guest0, send -s guest0 -p 5201 on guest1. Payload is written to stdout, all else
to stderr. Exit status: 0 done, 1 failed, 2 wrong use.

`

type options struct {
	send     bool
	iface    string
	server   netip.Prefix
	client   netip.Prefix // zero: any; not zero for send
	port     uint16
	pattern  int // -v; 0: none
	first    int // receive queue; -1: the last
	queues   int
	chunk    uint64        // -z: most bytes of one range of a send; 0: no limit
	bytes    uint64        // -b; 0: stdin
	gpu      int           // -1: the first
	stall    time.Duration // -w: longest time without progress; 0: no limit
	peer     time.Duration // -w: longest wait for the peer; 0: no limit
	linear   bool          // -L: fail if bytes come in host memory
	hold     bool          // -H
	describe bool          // -d
}

var errHelp = errors.New("help")

// parse parses a command and its flags, with defaults from the environment. If they ask for help, it writes help to
// out and returns errHelp.
func parse(args []string, out io.Writer) (*options, error) {
	if len(args) > 0 && (args[0] == "-h" || args[0] == "-help" || args[0] == "--help" || args[0] == "help") {
		usage(out, nil)
		return nil, errHelp
	}
	if len(args) == 0 || args[0] != "recv" && args[0] != "send" {
		return nil, errors.New("the first argument says what to do: recv or send")
	}
	o := &options{send: args[0] == "send", first: -1, queues: -1}
	fs := flag.NewFlagSet("devmem "+args[0], flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.StringVar(&o.iface, "f", cmp.Or(os.Getenv("VNIC_DEVICE"), "virtio"),
		"`device`: the PCI address of a virtio network device, or virtio for the only one; or a network interface, as eth0")
	fs.Func("s", "server `address` or name, of the receiver, with /prefix length if that is not 24 or 64",
		address(&o.server))
	fs.Func("c", "client `address` or name, of the sender; recv: only this client, from port -p", address(&o.client))
	fs.Func("p", "`port` of the server, and of the client", number(&o.port, 1, 1<<16-1))
	fs.Func("v", "recv: compare with `N`'s pattern, the bytes 1 to N-1 and a newline, again and again; send: send it (-b)",
		number(&o.pattern, 2, 256))
	fs.IntVar(&o.gpu, "g", -1, "`GPU` whose memory is used; the first if not given")
	wait := fs.Int("w", 30, "fail after so many `seconds` without progress, or without a peer; 0: never. If not given, "+
		"60 for the peer")
	fs.BoolVar(&o.describe, "d", false, "describe every call and fragment")
	if o.send {
		fs.Func("z", "at most so many `bytes` in one range of a send, of at most 1024", bytesFlag(&o.chunk))
		fs.Func("b", "send so many `bytes` of the pattern -v, in place of stdin; with K, M or G", bytesFlag(&o.bytes))
	} else {
		fs.Bool("l", true, "listen: as recv does")
		fs.Func("t", "`first` queue to bind (with -q); the last if not given", number(&o.first, 0, 1<<16-1))
		fs.Func("q", "`number` of queues to bind (with -t); the first gets the flow", number(&o.queues, 1, 1<<16-1))
		fs.BoolVar(&o.linear, "L", false, "fail if any byte comes in host memory")
		fs.BoolVar(&o.hold, "H", false, "hold all tokens, so that the page pool runs dry and the connection stalls")
	}
	if err := fs.Parse(args[1:]); errors.Is(err, flag.ErrHelp) {
		usage(out, fs)
		return nil, errHelp
	} else if err != nil {
		return nil, err
	}
	if err := o.ourselves(); err != nil {
		return nil, err
	}
	o.stall, o.peer = limits.ProgramStall.Here(), limits.Peer.Here()
	fs.Visit(func(f *flag.Flag) {
		if f.Name == "w" {
			o.stall = time.Duration(max(*wait, 0)) * time.Second
			o.peer = o.stall
		}
	})
	return o, o.check(fs.Args())
}

func (o *options) check(rest []string) error {
	switch {
	case len(rest) > 0:
		return fmt.Errorf("extra arguments: %q", strings.Join(rest, " "))
	case !o.server.IsValid():
		return errors.New("missing -s: the server's address")
	case o.port == 0:
		return errors.New("missing -p: the port")
	case o.send && !o.client.IsValid():
		return errors.New("missing -c: the client's address, which is ours")
	case o.client.IsValid() && o.client.Addr().Is4() != o.server.Addr().Is4():
		return errors.New("-s and -c: two families")
	case (o.first < 0) != (o.queues < 0):
		return errors.New("both -t and -q are required, or none")
	case o.bytes > 0 && o.pattern == 0:
		return errors.New("-b: of which pattern? -v says it")
	case o.send && o.pattern > 0 && o.bytes == 0:
		return errors.New("-v: how many bytes of the pattern? -b says it")
	}
	return nil
}

func (o *options) ourselves() error {
	p, name := &o.server, "VNIC_ADDR"
	if o.send {
		p = &o.client
		if o.server.IsValid() && o.server.Addr().Is6() {
			name = "VNIC_ADDR6"
		}
	}
	addr := os.Getenv(name)
	if p.IsValid() || addr == "" {
		return nil
	}
	var err error
	if *p, err = parseAddress(addr); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func (o *options) ours() netip.Prefix {
	if o.send {
		return o.client
	}
	return o.server
}

func usage(out io.Writer, fs *flag.FlagSet) {
	_, _ = io.WriteString(out, help)
	if fs == nil {
		_, _ = io.WriteString(out, "Flags: devmem recv -h, devmem send -h\n")
		return
	}
	fs.SetOutput(out)
	fs.PrintDefaults()
}

func address(p *netip.Prefix) func(string) error {
	return func(s string) (err error) {
		*p, err = parseAddress(s)
		if err != nil && !strings.Contains(s, "/") {
			var a netip.Addr
			a, err = hosts.lookup(s)
			*p = onLink(a)
		}
		return err
	}
}

func parseAddress(s string) (netip.Prefix, error) {
	if strings.Contains(s, "/") {
		return netip.ParsePrefix(s)
	}
	a, err := netip.ParseAddr(s)
	return onLink(a.Unmap()), err
}

func onLink(a netip.Addr) netip.Prefix {
	bits := 24
	if a.Is6() {
		bits = 64
	}
	return netip.PrefixFrom(a, bits)
}

func number[N int | uint16](p *N, lo, hi int) func(string) error {
	return func(s string) error {
		n, err := strconv.Atoi(s)
		if err != nil || n < lo || n > hi {
			return fmt.Errorf("not %d to %d", lo, hi)
		}
		*p = N(n)
		return nil
	}
}

func bytesFlag(p *uint64) func(string) error {
	return func(s string) error {
		num, shift := s, 0
		if i := strings.IndexAny(s, "KMGkmg"); i > 0 && i == len(s)-1 {
			num, shift = s[:i], map[byte]int{'k': 10, 'm': 20, 'g': 30}[s[i]|0x20]
		}
		n, err := strconv.ParseUint(num, 10, 32)
		if err != nil || n == 0 {
			return errors.New("not a number of bytes: 4096, 64K, 256M, 1G")
		}
		*p = n << shift
		return nil
	}
}
