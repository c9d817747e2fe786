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

// Directions, as guest 0 sees it.
const (
	Put = "put" // its NIC writes guest 1's memory
	Get = "get" // its NIC reads guest 1's memory
)

// Kinds of memory that memory regions are of.
const (
	GPU      = transfer.MemoryGPU
	RAM      = transfer.MemoryRAM
	OnDemand = transfer.MemoryODP // guest 1's: its program's own, of which the GPU's driver moves pages
)

// Options are the flags of `vnic rdma`.
type Options struct {
	session.Options

	Op      string   // Put or Get
	MRs     []string // kinds of memory, one after the other
	Size    uint64   // bytes of a round
	Block   uint64   // bytes of a work request
	Depth   int      // work requests of a queue pair under way
	QPs     int
	PathMTU int // bytes; 0: the largest that the links have room for
	Rounds  int
	Verify  bool // compare every byte

	// Of OnDemand.
	Pages   int           // of Size, if not 0
	Migrate float64       // pages a second that are moved meanwhile, to the GPU or back; 0: none
	Compact bool          // and Linux moves those that are in RAM
	Time    time.Duration // at least that long, in place of Rounds
	Fault   string        // what guest 1's NIC does wrong

	moved func(s *session.Set, r *Run, round int) // tests: after a round, from 0 on, before it is compared
}

// Defaults are the options without a flag, but for a seed.
func Defaults() Options {
	o := Options{Options: session.Defaults(), MRs: []string{GPU}, Size: 64 << 20, Block: 1 << 20, Depth: 16, QPs: 1,
		Rounds: 1, Verify: true}
	o.Modes = nil // MRs is in their place
	return o
}

const (
	maxSize   = 1 << 40
	maxBlock  = 1 << 30 // of a message (IBA Volume 1, 9.7.7: 2 GiB), as the NIC has it
	maxRounds = 1 << 20

	// overhead is what a frame has at most besides payload: the headers of IPv6 and UDP, BTH, RETH, immediate data and
	// ICRC. The NIC counts so for both IP versions (package internal/nic/rdma).
	overhead = 40 + 8 + 12 + 16 + 4 + 4
)

// pathMTUs are those of the specification, in bytes.
var pathMTUs = []int{256, 512, 1024, 2048, 4096}

// Complete sets what follows from the rest, and says what is wrong.
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
		o.Window *= 2        // what was put is read back beside it
		if len(o.MRs) == 1 { // guest 1's GPU may have less than that: it has pages as they come
			o.Windows = []uint64{o.Window, session.HugePage}
		}
	}
	if err := o.Check(); err != nil {
		return err
	}
	return o.checkMTU()
}

// checkMTU says whether the path MTU fits the links.
func (o *Options) checkMTU() error {
	d, err := o.Describe()
	if err != nil {
		return err
	}
	link := 0
	for _, g := range d.Guests[:2] {
		if mtu := g.NICs[0].MTU; mtu != 0 && (link == 0 || mtu < link) {
			link = mtu
		}
	}
	if link == 0 {
		return nil // the lab's default, which has room for the default path MTU
	}
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
