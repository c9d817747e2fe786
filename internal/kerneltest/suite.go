package kerneltest

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"
	"time"

	"vnic.dev/vnic/devmem/kernel"
	"vnic.dev/vnic/internal/devmemtest"
	"vnic.dev/vnic/internal/testkit"
)

// Options of Run.
type Options struct {
	Interface string         // the interface under test
	Addrs     []netip.Prefix // of Interface; the suite runs once for each
	Peer      string         // the interface that Interface is wired to
	PeerAddrs []netip.Prefix // of Peer, one for each of Addrs
	Node      int            // NUMA node whose memory plays the GPU's; -1: any node
	Cases     *regexp.Regexp // matches names, as v4/NAME, of the cases to run; nil: all
	Progress  io.Writer      // Run writes a line to it after each case; nil: none
}

// Result counts the cases by their results, each case once for each address with which it ran.
type Result struct {
	Passed  int                 `json:"passed"`
	Skipped int                 `json:"skipped"`
	Failed  int                 `json:"failed"`
	Cases   []devmemtest.Result `json:"cases"` // the failed and the skipped ones
}

// memSize is the GPU memory that the suite needs, in bytes.
const memSize = 4 << 20

// Run runs the suite once for each of o.Addrs. A case also fails if the kernel logs a fault meanwhile. Run returns an
// error if its setup fails or ctx ends, but not for failed cases.
func Run(ctx context.Context, o Options) (r Result, err error) {
	if len(o.Addrs) == 0 || len(o.Addrs) != len(o.PeerAddrs) {
		return r, fmt.Errorf("%d addresses and %d of the peer: %w", len(o.Addrs), len(o.PeerAddrs), syscall.EINVAL)
	}
	if err := bringUp(o.Interface, o.Addrs); err != nil {
		return r, fmt.Errorf("%s: %w", o.Interface, err)
	}
	p, err := newPeer(o.Peer, o.PeerAddrs)
	if err != nil {
		return r, err
	}
	defer p.close()
	gpu, err := kernel.NewUDMABuf(kernel.UDMABufOptions{Size: memSize, Node: o.Node})
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, gpu.Close()) }()
	log, err := openKernelLog()
	if err != nil {
		return r, err
	}
	defer log.close()
	for i, a := range o.Addrs {
		p.addr = o.PeerAddrs[i].Addr()
		for _, c := range devmemtest.Cases() {
			name := family(a) + "/" + c.Name
			if o.Cases != nil && !o.Cases.MatchString(name) {
				continue
			}
			if err := ctx.Err(); err != nil {
				return r, err
			}
			start := time.Now()
			res := devmemtest.Check(ctx, c, func(t devmemtest.T) *devmemtest.World { return world(t, o.Interface, a, gpu, p) })
			res.Name = name
			if lines := log.complaints(); len(lines) > 0 {
				res.Failed, res.Log = true, append(res.Log, lines...)
			}
			r.add(res)
			if o.Progress != nil {
				fmt.Fprintf(o.Progress, "%s %-6s %s %s\n", verdict(res), time.Since(start).Round(10*time.Millisecond), name,
					strings.Join(res.Log, "; "))
			}
		}
	}
	return r, nil
}

func family(p netip.Prefix) string {
	if p.Addr().Is4() {
		return "v4"
	}
	return "v6"
}

func verdict(r devmemtest.Result) string {
	switch {
	case r.Failed:
		return "FAIL"
	case r.Skipped:
		return "skip"
	}
	return "ok  "
}

func (r *Result) add(c devmemtest.Result) {
	switch {
	case c.Failed:
		r.Failed++
	case c.Skipped:
		r.Skipped++
	default:
		r.Passed++
		return
	}
	r.Cases = append(r.Cases, c)
}

// world zeroes the memory, opens the device, and restricts RSS to queue 0. When the case ends, it closes the device and
// checks that the interface's features, rings and RSS settings are as before world.
func world(t devmemtest.T, name string, addr netip.Prefix, gpu *kernel.UDMABuf, p *peer) *devmemtest.World {
	clear(gpu.Bytes())
	was := testkit.Must(settingsOf(name))(t)
	d, err := kernel.Open(kernel.Options{Interface: name, Buffers: gpu})
	testkit.OK(t, err)
	t.Cleanup(func() {
		testkit.NoError(t, d.Close())
		if now, err := settingsOf(name); err != nil {
			t.Error(err)
		} else if what := now.differs(was); len(what) > 0 {
			t.Errorf("Close leaves %s with other %v than before", name, what)
		}
	})
	testkit.OK(t, d.SetRSS(1))
	n := d.Queues()
	if n < 3 {
		t.Fatalf("%s has %d receive queues: 3 are needed", name, n)
	}
	return &devmemtest.World{
		Dev: d, Addr: addr.Addr(), Queues: []int{n - 2, n - 1}, Memory: devmemtest.Bytes(gpu.Bytes()), Host: p, Strict: true,
	}
}

const usage = `devmem-conformance -i eth0 -peer eth1

Runs the conformance suite of device memory TCP over the kernel's own, on interface eth0, with a
peer behind eth1, to which eth0 is wired. Needs root, a NIC with header split and flow rules, and
/dev/udmabuf. It takes eth1 to a namespace of its own, and sets what it needs to at eth0, and sets
it back.

`

// Main runs the program devmem-conformance with its arguments, and returns its exit status.
func Main(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	fs := flag.NewFlagSet("devmem-conformance", flag.ContinueOnError)
	fs.Usage = func() {
		fmt.Fprint(fs.Output(), usage)
		fs.PrintDefaults()
	}
	o := Options{Progress: os.Stderr}
	fs.StringVar(&o.Interface, "i", "", "interface under test")
	fs.StringVar(&o.Peer, "peer", "", "interface of the peer")
	fs.IntVar(&o.Node, "node", -1, "NUMA node whose memory passes for the GPU's; -1: ordinary memory")
	run := fs.String("run", "", "regular expression: which cases")
	addrs := fs.String("addr", "10.77.0.1/24,fd77::1/64", "addresses of the interface")
	peers := fs.String("peer-addr", "10.77.0.2/24,fd77::2/64", "addresses of the peer")
	err := fs.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err == nil {
		o.Addrs, o.PeerAddrs, err = bothPrefixes(*addrs, *peers)
	}
	if err == nil && *run != "" {
		o.Cases, err = regexp.Compile(*run)
	}
	if err != nil || o.Interface == "" || o.Peer == "" {
		fmt.Fprintln(os.Stderr, "devmem-conformance: -i and -peer are needed; see -h", err)
		return 2
	}
	r, err := Run(ctx, o)
	if jerr := json.NewEncoder(os.Stdout).Encode(r); err == nil {
		err = jerr
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "devmem-conformance:", err)
	}
	if err != nil || r.Failed > 0 {
		return 1
	}
	return 0
}

func bothPrefixes(a, b string) (as, bs []netip.Prefix, err error) {
	if as, err = prefixes(a); err == nil {
		bs, err = prefixes(b)
	}
	return as, bs, err
}

func prefixes(s string) (ps []netip.Prefix, err error) {
	for part := range strings.SplitSeq(s, ",") {
		p, err := netip.ParsePrefix(part)
		if err != nil {
			return nil, err
		}
		ps = append(ps, p)
	}
	return ps, nil
}
