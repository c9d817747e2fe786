package rdma

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"vnic.dev/vnic/internal/session"
	"vnic.dev/vnic/internal/transfer"
)

const (
	Put = "put" // guest 0's NIC writes guest 1's memory
	Get = "get" // guest 0's NIC reads guest 1's memory
)

// kinds of memory for regions
const (
	GPU      = transfer.MemoryGPU
	RAM      = transfer.MemoryRAM
	OnDemand = transfer.MemoryODP // ordinary memory of guest 1's program, whose pages the GPU's driver moves
)

// Options are the flags of `vnic rdma`.
type Options struct {
	session.Options

	Op      string
	MRs     []string // kinds of memory, in order
	Size    uint64   // bytes in a round
	Block   uint64   // bytes in a work request, at most
	Depth   int      // outstanding work requests of a queue pair
	QPs     int
	PathMTU int // bytes; 0: the largest that the links allow
	Rounds  int
	Verify  bool // compare the bytes after each round

	// The following options are for OnDemand.
	Pages   int           // sets Size to this many pages; 0: Size is as given
	Migrate float64       // pages a second that guest 1 moves to the GPU or back; 0: none, with Compact all it can
	Compact bool          // Linux moves pages within RAM
	Time    time.Duration // the rounds go on for this time at least, unless a fault ends them; 0: Rounds is their number
	Fault   string        // faults of guest 1 or its NIC, as --fault

	moved func(s *session.Set, r *Run, round int) // tests: called when a round has moved its bytes, before comparing
}

// Defaults returns the options of the command without flags, but with Seed 0.
func Defaults() Options {
	o := Options{Options: session.Defaults(), MRs: []string{GPU}, Size: 64 << 20, Block: 1 << 20, Depth: 16, QPs: 1,
		Rounds: 1, Verify: true}
	o.Modes = nil // the command has MRs in place of modes
	return o
}

const (
	maxSize   = 1 << 40
	maxBlock  = 1 << 30 // the longest message of our NIC (IBA Volume 1, 9.7.7 allows 2 GiB)
	maxRounds = 1 << 20

	// overhead bounds the headers of a packet, in bytes: IPv6 and UDP, BTH, RETH, immediate data and ICRC.
	overhead = 40 + 8 + 12 + 16 + 4 + 4
)

// path MTUs of the InfiniBand specification, in bytes
var pathMTUs = []int{256, 512, 1024, 2048, 4096}

// Complete sets the options that follow from others, and returns an error for invalid ones.
func (o *Options) Complete() error {
	o.Guests = 2
	if err := o.completeOnDemand(); err != nil {
		return err
	}
	if o.Op != Put && o.Op != Get {
		return fmt.Errorf("%q: %s, to write guest 1's memory, or %s, to read it", o.Op, Put, Get)
	}
	if err := cmp.Or(session.Bytes("--size", o.Size, maxSize), session.Number("--qd", o.Depth, 1, transfer.MaxRDMADepth),
		session.Number("--qps", o.QPs, 1, transfer.MaxRDMAQPs),
		session.Number("--rounds", o.Rounds, 1, maxRounds)); err != nil {
		return err
	}
	if err := session.Bytes("--block", o.Block, maxBlock); err != nil {
		return fmt.Errorf("%w, as no message is longer", err)
	}
	if len(o.MRs) == 0 {
		return fmt.Errorf("--mr: %s, %s or %s, or several with commas between", GPU, RAM, OnDemand)
	}
	for i, m := range o.MRs {
		switch {
		case m != GPU && m != RAM && m != OnDemand:
			return fmt.Errorf("--mr %s: %s, %s or %s, or several with commas between", m, GPU, RAM, OnDemand)
		case slices.Contains(o.MRs[:i], m):
			return fmt.Errorf("--mr %s: %s twice", strings.Join(o.MRs, ","), m)
		}
	}
	if o.Lab != nil && len(o.Lab.Complete().Guests) < 2 {
		return errors.New("--lab: it has one guest, and the first two are used")
	}
	o.Window = session.Pages(o.Size)
	if o.onDemand() {
		o.Window *= 2        // guest 0 reads the bytes back behind the source
		if len(o.MRs) == 1 { // guest 1's GPU may have less: pages move one by one
			o.Windows = []uint64{o.Window, session.HugePage}
		}
	}
	if err := o.Check(); err != nil {
		return err
	}
	return o.checkMTU()
}

func (o *Options) checkMTU() error {
	d, err := o.Describe()
	if err != nil {
		return err
	}
	d = d.Complete()
	link := min(d.Guests[0].NICs[0].MTU, d.Guests[1].NICs[0].MTU)
	room := link - overhead
	switch {
	case o.PathMTU != 0 && !slices.Contains(pathMTUs, o.PathMTU):
		return fmt.Errorf("--path-mtu %d: one of 256, 512, 1024, 2048, 4096", o.PathMTU)
	case room < pathMTUs[0]:
		return fmt.Errorf("--mtu %d: packets of RDMA have %d bytes of payload at the least, which need an MTU of %d", link,
			pathMTUs[0], overhead+pathMTUs[0])
	case o.PathMTU > room:
		return fmt.Errorf("--path-mtu %d: on links of MTU %d a packet has room for %d bytes of payload: --mtu %d", o.PathMTU,
			link, room, overhead+o.PathMTU)
	}
	return nil
}
