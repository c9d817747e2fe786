package lab

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"iter"
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

// MaxPorts is the maximum number of ports of a lab: the last byte of a port's default addresses is its number plus 1
// (MAC, Addr4, Addr6).
// MaxGPUs is the maximum number of GPUs of all guests together.
const (
	MaxPorts = 250
	MaxGPUs  = dma.MaxGPUs
)

// MinRAM is the least RAM, in bytes, that CheckMachine accepts for a guest that vnic boots; maxRAM and maxCPUs are the
// maximum RAM and number of CPUs.
const (
	MinRAM  = 192 << 20
	maxRAM  = 4 << 40
	maxCPUs = 64
)

// Description describes a lab. Open copies it.
type Description struct {
	Guests []Guest
	NoP2P  bool // no NIC accesses GPU memory directly
	// Scale divides the rates of links and memories, and multiplies delays, until Lab.SetScale; 0 means 1.
	Scale float64
}

// Guest is the hardware of one guest.
type Guest struct {
	Name string // the name in messages; "": guest0, guest1, ...
	NICs []NIC
	GPUs []GPU
	// NICs and GPUs are below Sockets and Switches, but for NICs on the root complex (NIC.Slot). A guest without sockets
	// gets one, with a switch for each NIC; each GPU is then below the switch of the first NIC that may address it.
	Sockets       []Socket
	Switches      []Switch
	Interconnects []Interconnect
	// Driver is the driver of the guest's GPUs: DriverNode (also if it is "") or DriverVNICGPU.
	Driver string
	// IOMMU gives the guest QEMU's IOMMU. All NICs of such a guest must be gVNICs, and its GPUs NUMA nodes.
	IOMMU bool
}

// Socket is a CPU socket: a NUMA node with a host bridge.
type Socket struct {
	Name    string
	Routing pcie.Routing // which requests between endpoints the host bridge forwards
	DRAM    float64      // rate of its memory, in bytes a second, reads and writes together; 0: no limit
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

// Slot is the place of a NIC, a GPU or a switch in the PCIe tree: a root port of a socket, or a downstream port of
// a switch.
type Slot struct {
	Below    string    // the name of the guest's socket or switch that has the port
	Link     pcie.Link // zero: no rate limit
	Redirect bool      // the port redirects requests between endpoints upstream (ACS)
}

// NIC is a network device, and its port on the lab's switch.
type NIC struct {
	// name of its port, in logs, counters and captures; "": port0, port1, ... counted over all guests
	Name       string
	Model      string       // Virtio or GVE
	MAC        wire.MAC     // zero: MAC(i) of port i
	Addr4      netip.Prefix // the address that the guest should configure; zero: Addr4(i)
	Addr6      netip.Prefix // zero: Addr6(i)
	Rate       float64      // rate of its Ethernet, in bytes a second in each direction; 0: no limit
	QueuePairs int          // 0: the model's default
	GPUs       []int        // numbers of the guest's GPUs that it may address; nil: all of them
	NICOptions
	// Slot is only for a guest with sockets. If it is zero, and GPUs is empty but not nil, the NIC is on the root complex,
	// and reaches no GPU.
	Slot Slot
	// Hotplug makes the NIC removable while the guest runs; a Virtio NIC directly below a socket always is. Only a Virtio
	// NIC below a socket or switch can have it.
	Hotplug bool
	// Timestamps offers receive timestamps to the driver. Only a GVE NIC can have it.
	Timestamps bool
	// Link has the impairment of each direction, the allowed source addresses and Storm. Open sets the NIC's MAC in a
	// copy of its Identity; a nil Identity allows this MAC alone.
	Link wire.LinkOptions
	// Sabotage is the fault that the NIC has from its start (package internal/nic/sabotage); nil: none.
	Sabotage *nic.Sabotage
}

// NICOptions are the settings of a NIC that users set by a flag, for all NICs of a command, or in a
// lab file. The tags are the keys of the file, and the comments are in its schema.
type NICOptions struct {
	// MTU is the guest's first MTU, in bytes; 0: 1500.
	MTU int `yaml:"mtu,omitempty"`
	// MaxMTU is the maximum to which the guest may raise its MTU, in bytes; 0: MTU.
	MaxMTU int `yaml:"max-mtu,omitempty"`
	// RSCUsecs is for how many microseconds at most the NIC holds a received TCP frame to merge later frames of
	// the same flow with it into one packet; 0: the NIC merges only frames of one batch.
	RSCUsecs int `yaml:"rsc-usecs,omitempty"`
	// XDP disables all receive offloads of a virtio NIC, checksums and merged segments, so that the
	// guest kernel's driver accepts native XDP programs. It needs a guest in QEMU.
	XDP bool `yaml:"xdp,omitempty"` // a gVNIC's driver accepts such programs under the conditions in WhyNoXDP
}

// GPU is an emulated GPU: memory apart from the guest's RAM.
type GPU struct {
	Name   string // "": Complete derives it from the name of the first NIC that may address the GPU
	Memory uint64 // bytes: a power of two from 4 KiB; for a NUMA node a multiple of 2 MiB
	Slot   Slot   // only with sockets
	// Hotplug makes the GPU removable; a PCI device directly below a socket always is. A GPU with Hotplug must be below a
	// socket or switch, and no NUMA node.
	Hotplug bool
}

// Uniform describes n guests with a copy of nic each, and unless gpuMemory is 0 with a GPU each.
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

// AllNICs yields the NICs of all guests, in the order of their ports. The loop may change them.
func (d *Description) AllNICs() iter.Seq[*NIC] {
	return func(yield func(*NIC) bool) {
		for i := range d.Guests {
			for j := range d.Guests[i].NICs {
				if !yield(&d.Guests[i].NICs[j]) {
					return
				}
			}
		}
	}
}

// DefaultStorm is the default of --storm (Options.Storm).
const DefaultStorm = 5000

// Options are the settings of a lab that are not part of its Description.
type Options struct {
	// Farewell is how long Close waits for connections to end by themselves before it ends them. The
	// value time.Duration(limits.GuestEnd) stands for limits.GuestEnd.Here().
	Farewell time.Duration
	Log      *slog.Logger // nil: none
	Services []Service
	Poll     int  // number of polling threads for all virtio NICs (nic.Pollers); 0: a goroutine per queue waits for kicks
	Hot      bool // the threads of Poll never sleep
	Flows    int  // rows of each NIC's table of flows (nic.Port.FlowAccount); 0: no table
	// Storm is the wire.LinkOptions.Storm of uplinks and of each port whose NIC.Link sets none.
	Storm int
	// FrontendMemory is how many bytes of memory the files that a frontend has shared with its NIC may occupy; if
	// they occupy more, Port.Serve ends with ErrMemory. 0: no limit. Connections of Port.Connected have no limit.
	FrontendMemory uint64
	// Sharing replaces dma.SharingOf (dma.Space.SetSharing); nil: SharingOf.
	Sharing func(pid int, dev, ino uint64) dma.Sharing
	// Note receives messages for the user about a guest; nil: Log gets them as warnings.
	Note func(port, text string)
}

// Service opens something else on the switch, such as a gateway or a capture. Open calls the services in order when all
// ports exist, and Close closes their results, the last one first.
type Service func(*Lab) (io.Closer, error)

const defaultMTU = 1500

// PortName or GuestName, followed by a number, is the default name of a port or a guest.
const (
	PortName  = "port"
	GuestName = "guest"
)

// MAC returns the default MAC address of port i: 02:76:6e:69:00:01 for port 0.
func MAC(i int) wire.MAC { return wire.MAC{0x02, 0x76, 0x6e, 0x69, 0x00, byte(i + 1)} }

// Addr4 returns the default IPv4 address of the guest at port i: 10.118.110.1/24 for port 0.
func Addr4(i int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 118, 110, byte(i + 1)}), 24)
}

// Addr6 returns the default IPv6 address of the guest at port i: fd76:6e69::1/64 for port 0.
func Addr6(i int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x76, 2: 0x6e, 3: 0x69, 15: byte(i + 1)}), 64)
}

// Check returns an error if it finds one in the description.
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

func (g *Guest) wrong(key, value, format string, args ...any) error {
	return &FieldError{Guest: g.Name, Key: key, Value: value, Text: fmt.Sprintf(format, args...)}
}

func (g *Guest) wrongNIC(i int, key, value, text string) error {
	return &FieldError{Guest: g.Name, Part: "nics", Index: i, Name: g.NICs[i].Name, Key: key, Value: value, Text: text}
}

// checkNIC checks fields of NIC i; Check looks at its place in the tree later.
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

// WhyNoXDP is the error text for a gVNIC with NIC.XDP (drivers/net/ethernet/google/gve/gve_main.c,
// gve_verify_xdp_configuration).
const WhyNoXDP = "leave it out: in the guest gve's driver takes native XDP programs after " + GVEBeforeXDP +
	", without tcp-data-split and with an MTU of at most 2034"

// GVEBeforeXDP has the commands that a guest needs before its gve driver accepts native XDP programs; WhyNoXDP has the
// other conditions.
const GVEBeforeXDP = "ethtool -K eth0 rx-gro-hw off, ethtool -G eth0 rx-buf-len 2048 and ethtool -L eth0 rx 2 tx 2 " +
	"(half of the queues)"

func (g *Guest) wrongGPU(i int, key, value, text string) error {
	return &FieldError{Guest: g.Name, Part: "gpus", Index: i, Name: g.GPUs[i].Name, Key: key, Value: value, Text: text}
}

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

// owner returns the index of the first NIC that may address GPU i; -1: none.
func (g *Guest) owner(i int) int {
	return slices.IndexFunc(g.NICs, func(n NIC) bool { return n.Reaches(i) })
}

// Complete returns a copy with the defaults of Scale, and of the names, addresses, MTUs and queues that d leaves out.
// Some NIC must be able to address each GPU (Check), else Complete panics.
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
			for k := range j { // an earlier GPU of the same NIC may have the name
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

// MemoryError reports that there is not enough memory for a GPU.
type MemoryError struct {
	Size uint64 // size of the GPU, in bytes
	GPUs int    // number of GPUs of the lab
	Err  error
}

func (e *MemoryError) Error() string {
	fix := "free some, or name less"
	if e.GPUs > 1 {
		fix = fmt.Sprintf("each of %d GPUs takes that much: %s", e.GPUs, fix)
	}
	return fmt.Sprintf("--gpu-memory %s: %v: %s", FormatBytes(e.Size), e.Err, fix)
}

// Unwrap returns Err, which wraps the system's error.
func (e *MemoryError) Unwrap() error { return e.Err }

// ErrClosed is in the error of Port.Serve if Lab.Close no longer lets the port serve connections.
var ErrClosed = errors.New("port closed")
