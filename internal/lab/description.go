package lab

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/lab/pcie"
	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/wire"
)

// MaxPorts is how many ports a lab has: the last byte of an address says which one it is, and some
// are the gateway's and broadcast. MaxGPUs is how many GPUs there are in all.
const (
	MaxPorts = 250
	MaxGPUs  = dma.MaxGPUs
)

// MinRAM is the least RAM of a guest that vnic boots, in bytes; maxRAM and maxCPUs are the other
// bounds of such a guest.
const (
	MinRAM  = 192 << 20
	maxRAM  = 4 << 40
	maxCPUs = 64
)

// Description describes a lab. A lab that was made of it shares nothing with it.
type Description struct {
	Guests []Guest
	NoP2P  bool // no NIC reaches GPU memory: payload is bounced through host memory
	// Scale is how many times slower than their rates say all links and memories with a rate are; 0: 1.
	Scale float64
}

// Guest is the hardware of one guest.
type Guest struct {
	Name string // for messages; "": guest0, guest1, ...
	NICs []NIC
	GPUs []GPU
	// NICs and GPUs are below Sockets and Switches. A guest without any socket has one that forwards nothing, and below it
	// a switch for each NIC; below the switch are the GPUs for which that NIC is the first that may address them. No QEMU
	// shows these to the guest.
	Sockets       []Socket
	Switches      []Switch
	Interconnects []Interconnect
	// Driver is the driver of its GPUs: DriverNode, which is the default, or DriverVNICGPU. With DriverVNICGPU QEMU always
	// shows the tree to the guest, as the guest's kernel decides by it which NIC reaches which GPU.
	Driver string
	// IOMMU makes the guest's kernel translate the addresses that its NICs use, by an IOMMU of QEMU's: their maps come and
	// go with each buffer. All NICs of such a guest are gVNICs, and its GPUs are NUMA nodes.
	IOMMU bool
}

// Socket is a CPU socket: a NUMA node with a host bridge.
type Socket struct {
	Name    string
	Routing pcie.Routing // what the host bridge forwards between its ports, and between itself and others
	DRAM    float64      // rate of its memory, in bytes a second, reads and writes together; 0: nothing is said of it
}

// Interconnect is the link between two sockets.
type Interconnect struct {
	From, To string
	Rate     float64 // bytes a second in each direction
}

// Switch is a PCIe switch.
type Switch struct {
	Name string
	Slot
}

// Slot is where something is plugged in: a root port of a socket, or a downstream port of a switch.
type Slot struct {
	Below    string    // the name of a socket or a switch of the guest
	Link     pcie.Link // zero: nothing is said of it
	Redirect bool      // the port redirects requests between endpoints upstream (ACS)
}

// NIC is a network device, and its port on the switch. Of the zero NIC only Model is wanting.
type NIC struct {
	// of its port, for logs, counters and captures; "": port0, port1, ... counted over all guests
	Name       string
	Model      string       // Virtio or GVE
	MAC        wire.MAC     // zero: MAC(i) of port i
	Addr4      netip.Prefix // what the guest is meant to have; zero: Addr4(i)
	Addr6      netip.Prefix // zero: Addr6(i)
	Rate       float64      // of its wire, bytes a second in each direction; 0: nothing is said of it
	QueuePairs int          // 0: the model's
	GPUs       []int        // which of the guest's GPUs it may address, by number; nil: all of them
	NICOptions
	Slot Slot // of a guest with sockets; zero of one that may address no GPU: none, on the root complex
	// Hotplug says that it can be removed while the guest runs, also where it is below a switch: QEMU's guest then sees a
	// link of 2.5 GT/s and one lane there, whatever Slot says. Of Virtio, and of a guest with sockets.
	Hotplug bool
	// Timestamps offers the driver timestamps of what it receives, which has a price (gve.Options). Of GVE.
	Timestamps bool
	// Link is impairment, in either direction, and which source addresses the guest's frames may have. Its Identity is
	// completed: nil stands for MAC alone.
	Link wire.LinkOptions
	// Sabotage is a fault that the NIC is made with (package internal/nic/sabotage); nil: none.
	Sabotage *nic.Sabotage
}

// NICOptions are what users set of a NIC by a flag, for all NICs of a command, or in a lab file.
type NICOptions struct {
	MTU    int // in bytes, with which the guest begins; 0: 1500
	MaxMTU int // to which the guest may raise its MTU; 0: MTU
	// RSCUsecs is how many microseconds a received frame of a TCP flow waits for more of the flow, to become one packet
	// with them; 0: only frames of one batch become one packet.
	RSCUsecs int
	// XDP makes the NIC offload nothing that the guest receives, no checksums and no merged segments: only then Linux's
	// virtio_net takes native XDP programs. Of Virtio in QEMU; a gVNIC's driver takes them after GVEBeforeXDP.
	XDP bool
}

// GPU is memory that is neither the guest's RAM nor its CPUs'. How the guest sees it follows from
// the model of the first NIC that may address it (Model.Node).
type GPU struct {
	Name   string // "": that of the first NIC that may address it
	Memory uint64 // bytes: a power of two from 4 KiB; where it is a NUMA node, a multiple of 2 MiB
	Slot   Slot   // of a guest with sockets
	// Hotplug is as a NIC's, of a GPU that is no NUMA node.
	Hotplug bool
}

// Uniform describes n guests of one NIC each, and one GPU each unless gpuMemory is 0.
func Uniform(n int, nic NIC, gpuMemory uint64) (d Description) {
	for range max(n, 0) {
		g := Guest{NICs: []NIC{nic}}
		if gpuMemory != 0 {
			g.GPUs = []GPU{{Memory: gpuMemory}}
		}
		d.Guests = append(d.Guests, g)
	}
	return d
}

// DefaultStorm is a bound of Options.Storm that no guest meets which does nothing wrong.
const DefaultStorm = 5000

// Options are what of a lab is not described.
type Options struct {
	// how long Close waits for connections to end by themselves, where each QEMU has been ended
	// before; limits.GuestEnd is longer on a slow machine
	Farewell time.Duration
	Log      *slog.Logger // nil: none
	Services []Service
	Poll     int  // threads that serve all virtio NICs by polling (nic.Pollers); 0: a thread sleeps at each queue
	Hot      bool // they never sleep
	Flows    int  // rows of each NIC's account of flows (nic.Port.FlowAccount); 0: none is kept
	// Storm is wire.LinkOptions.Storm of each port that has none of its own, and of uplinks
	Storm int
	// FrontendMemory is how many bytes the files may occupy that a frontend shares, or has shared in the same connection
	// (Port.Serve); 0: as many as it likes.
	FrontendMemory uint64
	// Sharing looks how a frontend has a file mapped, in the place of dma.SharingOf (dma.Space.SetSharing); nil: that.
	Sharing func(pid int, dev, ino uint64) dma.Sharing
	// Note gets what the user should know of a guest's frames, as that they are dropped; nil: Log gets it, as a warning
	Note func(port, text string)
}

// Service is something else that is on the switch, a gateway or a capture: it is made when all
// ports are there, and closed, last one first, before they go.
type Service func(*Lab) (io.Closer, error)

const defaultMTU = 1500

// PortName and its number is a port that has no other name, as GuestName is of a guest.
const (
	PortName  = "port"
	GuestName = "guest"
)

// MAC is the address of port i: 02:76:6e:69:00:01 is the first.
func MAC(i int) wire.MAC { return wire.MAC{0x02, 0x76, 0x6e, 0x69, 0x00, byte(i + 1)} }

// Addr4 is the IPv4 address of the guest at port i: 10.118.110.1/24 is the first.
func Addr4(i int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 118, 110, byte(i + 1)}), 24)
}

// Addr6 is its IPv6 address: fd76:6e69::1/64 is the first.
func Addr6(i int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x76, 2: 0x6e, 3: 0x69, 15: byte(i + 1)}), 64)
}

// Check says what is wrong with the description, in terms of flags, as a user gives them.
func (d *Description) Check() error {
	ports, gpus := 0, 0
	for _, g := range d.Guests {
		for i := range g.NICs {
			if err := g.checkNIC(i); err != nil {
				return err
			}
		}
		ports, gpus = ports+len(g.NICs), gpus+len(g.GPUs)
	}
	switch {
	case ports < 1 || ports > MaxPorts:
		return fmt.Errorf("%d ports: 1 to %d", ports, MaxPorts)
	case gpus > MaxGPUs:
		return fmt.Errorf("%d ports with GPU memory: %d at most: fewer ports, or --gpu-memory 0", gpus, MaxGPUs)
	}
	for _, g := range d.Guests {
		for i := range g.NICs {
			if n := &g.NICs[i]; n.Hotplug && (len(g.Sockets) == 0 || !g.inside(n)) {
				return g.wrongNIC(i, "hotplug", "", errNoPort.Error())
			}
		}
		if err := errors.Join(g.checkGPUs(), g.checkIOMMU()); err != nil {
			return err
		}
	}
	c := d.Complete()
	for i := range c.Guests {
		if _, err := c.Guests[i].tree(); err != nil {
			return fmt.Errorf("guest %s: %w", c.Guests[i].Name, err)
		}
	}
	return nil
}

// CheckMachine checks the RAM, in bytes, and the number of CPUs of a guest that vnic boots.
func (g *Guest) CheckMachine(ram uint64, cpus int) error {
	switch {
	case ram < MinRAM || ram > maxRAM || ram%hugePage != 0:
		return g.wrong("memory", FormatBytes(ram), "%s to %s, in steps of 2M", FormatBytes(MinRAM), FormatBytes(maxRAM))
	case cpus < 1 || cpus > maxCPUs:
		return g.wrong("cpus", strconv.Itoa(cpus), "1 to %d", maxCPUs)
	}
	return nil
}

// wrong is an error of a field of the guest's own.
func (g *Guest) wrong(key, value, format string, args ...any) error {
	return &FieldError{Guest: g.Name, Key: key, Value: value, Text: fmt.Sprintf(format, args...)}
}

// wrongNIC is an error of a field of NIC i.
func (g *Guest) wrongNIC(i int, key, value, text string) error {
	return &FieldError{Guest: g.Name, Part: "nics", Index: i, Name: g.NICs[i].Name, Key: key, Value: value, Text: text}
}

// checkNIC says what is wrong with NIC i, if it is not what depends on the guest's tree.
func (g *Guest) checkNIC(i int) error {
	n, gpus := &g.NICs[i], len(g.GPUs)
	wrong := func(key string, value any, format string, args ...any) error {
		return g.wrongNIC(i, key, fmt.Sprint(value), fmt.Sprintf(format, args...))
	}
	m, known := LookupModel(n.Model)
	mtu := cmp.Or(n.MTU, defaultMTU)
	switch {
	case !known:
		return wrong("model", n.Model, modelNames)
	case mtu < MinMTU || mtu > m.MaxMTU:
		return wrong("mtu", mtu, "%d to %d with model %s", MinMTU, m.MaxMTU, n.Model)
	case n.MaxMTU != 0 && (n.MaxMTU < mtu || n.MaxMTU > m.MaxMTU):
		return wrong("max-mtu", n.MaxMTU, "%d (mtu) to %d with model %s", mtu, m.MaxMTU, n.Model)
	case n.RSCUsecs < 0 || n.RSCUsecs > MaxRSCUsecs:
		return wrong("rsc-usecs", n.RSCUsecs, "microseconds, 0 to %d", MaxRSCUsecs)
	case n.QueuePairs < 0 || n.QueuePairs > MaxQueuePairs:
		return wrong("queues", n.QueuePairs, "1 to %d pairs", MaxQueuePairs)
	case n.XDP && m.VFIOUser:
		return wrong("xdp", "with model "+n.Model, "%s", WhyNoXDP)
	case n.Hotplug && m.VFIOUser:
		return wrong("hotplug", "", "not with model gve: %s: leave it out, and take the link down instead "+
			"(link %s state=down)", whyNoGVNIC, n.Name)
	case n.Timestamps && n.Model != GVE:
		return wrong("timestamps", "", "of model gve: virtio-net has none")
	}
	reached := gpus
	if n.GPUs != nil {
		reached = len(n.GPUs)
	}
	if reached > control.MaxGPUs {
		return wrong("gpus", "", "it may address %d: %d at most, so name those that it may", reached, control.MaxGPUs)
	}
	if err := CheckLink(&n.Link.Up); err != nil {
		return err
	}
	for k, gpu := range n.GPUs {
		if gpu < 0 || gpu >= gpus || slices.Contains(n.GPUs[:k], gpu) {
			return wrong("gpus", gpu, "not one of the guest's %d, or twice", gpus)
		}
	}
	return nil
}

// WhyNoXDP says why a gVNIC does not have NIC.XDP (drivers/net/ethernet/google/gve/gve_main.c,
// gve_verify_xdp_configuration).
const WhyNoXDP = "leave it out: in the guest gve's driver takes native XDP programs after " + GVEBeforeXDP +
	", without tcp-data-split and with an MTU of at most 2034"

// GVEBeforeXDP are the commands in a guest after which gve's driver takes native XDP programs.
const GVEBeforeXDP = "ethtool -K eth0 rx-gro-hw off, ethtool -G eth0 rx-buf-len 2048 and ethtool -L eth0 rx 2 tx 2 " +
	"(half of the queues)"

// wrongGPU is an error of a field of GPU i.
func (g *Guest) wrongGPU(i int, key, value, text string) error {
	return &FieldError{Guest: g.Name, Part: "gpus", Index: i, Name: g.GPUs[i].Name, Key: key, Value: value, Text: text}
}

// checkGPUs looks at GPUs as the NICs that may address them show them to the guest.
func (g *Guest) checkGPUs() error {
	for i, gpu := range g.GPUs {
		owner := g.owner(i)
		if owner < 0 {
			return g.wrongGPU(i, "", "", "no NIC of the guest may address it")
		}
		m := g.ModelOf(&g.NICs[owner])
		for _, n := range g.NICs {
			if n.Reaches(i) && g.ModelOf(&n).Node != m.Node {
				return g.wrongGPU(i, "", "",
					"NICs of both models may address it, and it can only be one of PCI device and NUMA node: say at each NIC "+
						"which it may, as gpus: [gpu0]")
			}
		}
		switch {
		case !m.Node && (gpu.Memory < 4096 || gpu.Memory&(gpu.Memory-1) != 0):
			return g.wrongGPU(i, "memory", FormatBytes(gpu.Memory), "not a power of two from 4K, as a PCI BAR must be")
		case m.Node && (gpu.Memory == 0 || gpu.Memory%hugePage != 0):
			return g.wrongGPU(i, "memory", FormatBytes(gpu.Memory), "not a multiple of 2M, as a NUMA node must be")
		case gpu.Hotplug && m.Node:
			return g.wrongGPU(i, "hotplug", "", whyNoNode)
		case gpu.Hotplug && len(g.Sockets) == 0:
			return g.wrongGPU(i, "hotplug", "", errNoPort.Error())
		}
	}
	return nil
}

const hugePage = 2 << 20

// Reaches reports whether the NIC may address GPU i of its guest.
func (n *NIC) Reaches(i int) bool { return n.GPUs == nil || slices.Contains(n.GPUs, i) }

// owner is the first NIC that may address GPU i: the GPU is below the same PCIe switch; -1: none.
func (g *Guest) owner(i int) int {
	return slices.IndexFunc(g.NICs, func(n NIC) bool { return n.Reaches(i) })
}

// Complete gives a copy in which every name, address and size is set.
func (d *Description) Complete() (c Description) {
	c.NoP2P, c.Scale = d.NoP2P, cmp.Or(d.Scale, 1)
	port := 0
	for i, g := range d.Guests {
		g.Name = cmp.Or(g.Name, fmt.Sprint(GuestName, i))
		g.NICs, g.GPUs = slices.Clone(g.NICs), slices.Clone(g.GPUs)
		g.Sockets, g.Switches = slices.Clone(g.Sockets), slices.Clone(g.Switches)
		g.Interconnects = slices.Clone(g.Interconnects)
		for j := range g.NICs {
			n := &g.NICs[j]
			m, _ := LookupModel(n.Model)
			n.Name, n.MAC = cmp.Or(n.Name, fmt.Sprint(PortName, port)), cmp.Or(n.MAC, MAC(port))
			n.Addr4, n.Addr6 = cmp.Or(n.Addr4, Addr4(port)), cmp.Or(n.Addr6, Addr6(port))
			n.MTU, n.QueuePairs = cmp.Or(n.MTU, defaultMTU), cmp.Or(n.QueuePairs, m.QueuePairs)
			n.MaxMTU = cmp.Or(n.MaxMTU, n.MTU)
			n.GPUs = slices.Clone(n.GPUs)
			port++
		}
		for j := range g.GPUs {
			owner := g.owner(j)
			name := g.NICs[owner].Name
			for k := range j { // another of the same NIC has the name already
				if g.owner(k) == owner {
					name = fmt.Sprint(g.NICs[owner].Name, ".", j)
				}
			}
			g.GPUs[j].Name = cmp.Or(g.GPUs[j].Name, name)
		}
		c.Guests = append(c.Guests, g)
	}
	return c
}

// MemoryError says that there is not enough memory for a GPU, and what to do.
type MemoryError struct {
	Size uint64 // bytes of the GPU
	GPUs int    // of the lab
	Err  error
}

func (e *MemoryError) Error() string {
	fix := "free some, or name less"
	if e.GPUs > 1 {
		fix = fmt.Sprintf("each of %d GPUs takes that much: %s", e.GPUs, fix)
	}
	return fmt.Sprintf("--gpu-memory %s: %v: %s", FormatBytes(e.Size), e.Err, fix)
}

// Unwrap gives the system's error.
func (e *MemoryError) Unwrap() error { return e.Err }

// ErrClosed is a port's whose lab has been closed.
var ErrClosed = errors.New("port closed")
