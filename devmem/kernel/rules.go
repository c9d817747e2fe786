package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"syscall"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/devmembase"
	"vnic.dev/vnic/internal/diagnosis"
)

// From include/uapi/linux/ethtool.h. Netlink has no flow rules, and sets the RSS table only since 6.17.
const (
	ethtoolGRXCLSRLCNT = 0x2e
	ethtoolGRXCLSRLALL = 0x30
	ethtoolSRXCLSRLDEL = 0x31
	ethtoolSRXCLSRLINS = 0x32
	ethtoolGRXFHINDIR  = 0x38
	ethtoolSRXFHINDIR  = 0x39

	tcpV4Flow = 0x01 // TCP_V4_FLOW
	tcpV6Flow = 0x05 // TCP_V6_FLOW

	locSpecial = 0x80000000 // RX_CLS_LOC_SPECIAL: the driver accepts locAny
	locAny     = 0xffffffff // RX_CLS_LOC_ANY

	// struct ethtool_rxnfc: u32 cmd, u32 flow_type, u64 data, struct ethtool_rx_flow_spec fs, u32
	// rule_cnt, u32 rule_locs[].
	rxnfcLen    = 192
	rxnfcData   = 8
	rxnfcSpec   = 16
	rxnfcCount  = 184
	rxnfcLocs   = 188
	specKey     = 4   // offset in fs, after u32 flow_type, of the values to match
	specMask    = 76  // their masks
	specCookie  = 152 // the queue
	specLoc     = 160
	maxLocs     = 1 << 16
	maxIndirLen = 1 << 16
)

var big = binary.BigEndian

// command calls SIOCETHTOOL with a buffer of size bytes that begins with words, and returns the buffer as the kernel
// has changed it.
func (d *Device) command(size int, words ...uint32) ([]byte, error) {
	b := make([]byte, size)
	for i, w := range words {
		native.PutUint32(b[4*i:], w)
	}
	return b, d.ioctl(b)
}

// ruleMatch writes a flow's values to key and their masks to mask, as struct ethtool_tcpip4_spec or
// ethtool_tcpip6_spec, and returns the flow type.
func ruleMatch(f devmem.Flow, key, mask []byte) (flowType uint32) {
	src, dst := f.Src.Addr().Unmap(), f.Dst.Addr().Unmap()
	flowType, size := tcpV4Flow, 4
	if src.Is6() || dst.Is6() {
		flowType, size = tcpV6Flow, 16
	}
	addr := func(off int, a netip.Addr) {
		if !a.IsValid() {
			return
		}
		copy(key[off:], a.AsSlice())
		for i := range size {
			mask[off+i] = 0xff
		}
	}
	port := func(off int, p uint16) {
		if p != 0 {
			big.PutUint16(key[off:], p)
			big.PutUint16(mask[off:], 0xffff)
		}
	}
	addr(0, src)
	addr(size, dst)
	port(2*size, f.Src.Port())
	port(2*size+2, f.Dst.Port())
	return uint32(flowType)
}

func insertRule(f devmem.Flow, location uint32) []byte {
	b := make([]byte, rxnfcLen)
	native.PutUint32(b, ethtoolSRXCLSRLINS)
	fs := b[rxnfcSpec:]
	native.PutUint32(fs, ruleMatch(f, fs[specKey:], fs[specMask:]))
	native.PutUint64(fs[specCookie:], uint64(f.Queue))
	native.PutUint32(fs[specLoc:], location)
	return b
}

func deleteRule(location uint32) []byte {
	b := make([]byte, rxnfcLen)
	native.PutUint32(b, ethtoolSRXCLSRLDEL)
	native.PutUint32(b[rxnfcSpec+specLoc:], location)
	return b
}

// freeRule returns locAny if the driver accepts that, else the last free location of the first maxLocs, or ENOSPC.
func (d *Device) freeRule() (uint32, error) {
	b, err := d.command(rxnfcLen, ethtoolGRXCLSRLCNT)
	if err != nil {
		return 0, fmt.Errorf("count rules: %w", err)
	}
	if native.Uint64(b[rxnfcData:])&locSpecial != 0 {
		return locAny, nil
	}
	count := native.Uint32(b[rxnfcCount:])
	if count > maxLocs {
		return 0, fmt.Errorf("%d rules: %w", count, syscall.E2BIG)
	}
	used, size, err := d.ruleLocs(count)
	if err != nil {
		return 0, err
	}
	for i := min(size, maxLocs); i > 0; i-- {
		if !slices.Contains(used, uint32(i-1)) {
			return uint32(i - 1), nil
		}
	}
	return 0, fmt.Errorf("all %d rules are in use: %w", size, syscall.ENOSPC)
}

// ruleLocs returns the locations of up to count rules, and how many locations there are.
func (d *Device) ruleLocs(count uint32) (used []uint32, size uint64, err error) {
	b := make([]byte, rxnfcLen+4*int(count))
	native.PutUint32(b, ethtoolGRXCLSRLALL)
	native.PutUint32(b[rxnfcCount:], count)
	if err := d.ioctl(b); err != nil {
		return nil, 0, fmt.Errorf("list rules: %w", err)
	}
	for i := range min(count, native.Uint32(b[rxnfcCount:])) {
		used = append(used, native.Uint32(b[rxnfcLocs+4*i:]))
	}
	return used, native.Uint64(b[rxnfcData:]), nil
}

func (d *Device) dropRules() error {
	b, err := d.command(rxnfcLen, ethtoolGRXCLSRLCNT)
	if errors.Is(err, syscall.EOPNOTSUPP) {
		return nil // the driver has no rules, or ntuple is off
	} else if err != nil {
		return fmt.Errorf("count rules: %w", err)
	}
	locs, _, err := d.ruleLocs(min(native.Uint32(b[rxnfcCount:]), maxLocs))
	if err != nil {
		return err
	}
	for _, loc := range locs {
		if err := d.ioctl(deleteRule(loc)); err != nil && !errors.Is(err, syscall.ENOENT) {
			return fmt.Errorf("delete rule %d: %w", loc, err)
		}
	}
	return nil
}

// AddFlow implements devmem.Device. If the flow is valid, it turns the interface's feature ntuple on.
func (d *Device) AddFlow(f devmem.Flow) (devmem.FlowID, error) {
	fail := func(err error) (devmem.FlowID, error) {
		return 0, fmt.Errorf("%s: flow %v to %v, queue %d: %w", d.name, f.Src, f.Dst, f.Queue, err)
	}
	f.Src, f.Dst = devmembase.Unmap(f.Src), devmembase.Unmap(f.Dst)
	d.mu.Lock()
	defer d.mu.Unlock()
	n, err := d.queues()
	if err == nil {
		err = devmembase.CheckFlow(f, n, slices.Collect(maps.Values(d.flows))...)
	}
	if err != nil {
		return fail(err)
	}
	if err := d.enableNtuple(); err != nil {
		return fail(fmt.Errorf("turn ntuple on: %w", err))
	}
	loc, err := d.freeRule()
	if err != nil {
		return fail(err)
	}
	b := insertRule(f, loc)
	if err := d.ioctl(b); err != nil {
		return fail(err)
	}
	id := devmem.FlowID(native.Uint32(b[rxnfcSpec+specLoc:])) + 1 // FlowID 0 names no rule
	d.flows[id] = f
	return id, nil
}

// DelFlow implements devmem.Device.
func (d *Device) DelFlow(id devmem.FlowID) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.use(); err != nil {
		return err
	}
	return d.delFlow(id)
}

func (d *Device) delFlow(id devmem.FlowID) error {
	if _, ok := d.flows[id]; !ok {
		return fmt.Errorf("%s: %w", d.name, diagnosis.NoFlow(id, slices.Collect(maps.Keys(d.flows))))
	}
	err := d.ioctl(deleteRule(uint32(id - 1)))
	if err == nil || errors.Is(err, syscall.ENOENT) { // ENOENT: the rule is deleted already
		delete(d.flows, id)
		return nil
	}
	return fmt.Errorf("%s: flow %d: %w", d.name, id, err)
}

func (d *Device) enableNtuple() error {
	f, err := d.ethtool.getFeature(d.index, ntupleFeature)
	if err != nil || f.active {
		return err
	}
	if !f.changeable {
		return fmt.Errorf("the driver has no flow rules: %w", syscall.EOPNOTSUPP)
	}
	if err := d.ethtool.setFeature(d.index, ntupleFeature, true); err != nil {
		return err
	}
	d.undo.ntuple = true
	return nil
}

func (d *Device) indir() ([]uint32, error) {
	b, err := d.command(8, ethtoolGRXFHINDIR) // struct ethtool_rxfh_indir: u32 cmd, u32 size, u32 ring_index[]
	if err != nil {
		return nil, err
	}
	n := native.Uint32(b[4:])
	if n == 0 || n > maxIndirLen {
		return nil, fmt.Errorf("rss table of %d entries: %w", n, syscall.EOPNOTSUPP)
	}
	if b, err = d.command(8+4*int(n), ethtoolGRXFHINDIR, n); err != nil {
		return nil, err
	}
	table := make([]uint32, n)
	_, err = binary.Decode(b[8:], native, table)
	return table, err
}

// setIndir sets the table of RSS; an empty one means the driver's default.
func (d *Device) setIndir(table []uint32) error {
	request := append([]uint32{ethtoolSRXFHINDIR, uint32(len(table))}, table...)
	_, err := d.command(4*len(request), request...)
	return err
}

// equalTable returns the table of `ethtool -X equal n`.
func equalTable(size, n int) []uint32 {
	t := make([]uint32, size)
	for i := range t {
		t[i] = uint32(i % n)
	}
	return t
}

// SetRSS implements devmem.Device.
func (d *Device) SetRSS(n int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	fail := func(err error) error { return fmt.Errorf("%s: rss over %d queues: %w", d.name, n, err) }
	all, err := d.queues()
	if err != nil {
		return fail(err)
	}
	if n < 1 || n > all {
		return fail(fmt.Errorf("there are %d: %w", all, syscall.EINVAL))
	}
	was, err := d.indir()
	if err != nil {
		return fail(err)
	}
	table := equalTable(len(was), n)
	if slices.Equal(was, table) {
		return nil
	}
	if err := d.setIndir(table); err != nil {
		return fail(err)
	}
	if d.undo.rss == nil {
		if d.undo.rss = was; slices.Equal(was, equalTable(len(was), all)) {
			d.undo.rss = []uint32{} // taken for the driver's default
		}
	}
	return nil
}
