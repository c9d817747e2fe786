package servelab

import (
	"context"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	mdl "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"vnic.dev/vnic/test/internal/guestops"
)

// xdpSeen is the map in which the XDP program of the last attach counts packets.
var xdpSeen *ebpf.Map

// attach attaches to a.Interface, in the driver ("native"), an XDP program that counts packets and passes them on.
func attach(a *args) error {
	seen, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		return fmt.Errorf("map: %w", err)
	}
	xdpSeen = seen
	const pass = 2 // XDP_PASS (include/uapi/linux/bpf.h)
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "GPL", Instructions: asm.Instructions{
		asm.StoreImm(asm.RFP, -4, 0, asm.Word),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.LoadMapPtr(asm.R1, seen.FD()),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "pass"),
		asm.Mov.Imm(asm.R1, 1),
		asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
		asm.Mov.Imm(asm.R0, pass).WithSymbol("pass"),
		asm.Return(),
	}})
	if err != nil {
		return fmt.Errorf("program: %w", err)
	}
	defer prog.Close()                    // once attached, the interface keeps the program
	nl.EnableErrorMessageReporting = true // for errors with the driver's message
	return guestops.Link(a.Interface, "XDP", func(l netlink.Link) error {
		return netlink.LinkSetXdpFdWithFlags(l, prog.FD(), unix.XDP_FLAGS_DRV_MODE)
	})
}

func passed(context.Context, *args) (any, error) {
	var n uint64
	err := xdpSeen.Lookup(uint32(0), &n)
	return &args{Bytes: n}, err
}

func address(a *args) error {
	return guestops.Link(a.Interface, "address", func(l netlink.Link) error {
		addr, err := netlink.ParseAddr(a.Addr)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(l); err != nil {
			return err
		}
		return netlink.AddrAdd(l, addr)
	})
}

// Constants of ETHTOOL_MSG_RINGS_SET (include/uapi/linux/ethtool_netlink.h), the length of receive buffers in bytes,
// and the name of a feature, hardware GRO.
const (
	ringsSet      = 16
	attrRXBufLen  = 10
	attrSplit     = 11
	splitDisabled = 1
	xdpBufLen     = 2048
	rxCoalescing  = "rx-gro-hw"
)

// forXDP turns hardware GRO (coalescing) and header split off and sets buffers of xdpBufLen bytes: gve's driver takes
// no native XDP program otherwise. The driver has further conditions, for the MTU and the number of queues.
func forXDP(a *args) error {
	if err := guestops.Set(guestops.Ethtool, featuresSet, func(ae *mdl.AttributeEncoder) {
		guestops.Interface(ae, a.Interface)
		want(ae, false, rxCoalescing)
	}); err != nil {
		return fmt.Errorf("%s: %w", rxCoalescing, err)
	}
	return guestops.Set(guestops.Ethtool, ringsSet, func(ae *mdl.AttributeEncoder) {
		guestops.Interface(ae, a.Interface)
		ae.Uint32(attrRXBufLen, xdpBufLen)
		ae.Uint8(attrSplit, splitDisabled)
	})
}
