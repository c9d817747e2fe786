package labfile

import (
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/wire/uplink"
)

// File is the content of a lab file.
type File struct {
	// Guests by their names. A name begins with a letter.
	Guests map[string]Guest `yaml:"guests"`
	// Links from NICs to the switch that connects all NICs. A NIC that is not named here has a link
	// without faults.
	Links []Link `yaml:"links,omitempty"`
	// Script lists changes of the lab and when they happen.
	Script []Event `yaml:"script,omitempty"`
	// Uplinks connect the switch to other machines, to a tap of this machine, or to another emulator.
	Uplinks []Uplink `yaml:"uplinks,omitempty"`
	// Gateway connects the first NIC of each guest in QEMU: nat, to this machine's network; isolated, to
	// the guests and their names only; off: there is no gateway. Without this key the command decides.
	Gateway string `yaml:"gateway,omitempty" jsonschema:"enum=nat,enum=isolated,enum=off"`
	// Accel is how QEMU runs the guests: kvm; tcg, which emulates their CPUs; or auto, which uses KVM
	// where KVM works.
	Accel string `yaml:"accel,omitempty" jsonschema:"enum=auto,enum=kvm,enum=tcg"`
	// P2P is on if a NIC transfers directly to and from the memory of a GPU where the PCIe tree allows
	// it, and off if all payload takes a detour through host memory.
	P2P string `yaml:"p2p,omitempty" jsonschema:"enum=on,enum=off"`
	// Seed selects the packets that links lose, hold back, duplicate or corrupt; without it, and without --seed, each run
	// draws its own seed.
	Seed *uint64 `yaml:"seed,omitempty"`
	// Scale divides all rates and multiplies all delays, for an emulator that is a thousand times slower than
	// hardware: a number from 1, the default, to 1000000.
	Scale Quantity `yaml:"scale,omitempty"`
}

// Guest is a machine.
type Guest struct {
	// Memory is the size of its RAM, as 512M.
	Memory Quantity `yaml:"memory,omitempty"`
	// CPUs is the number of its CPUs.
	CPUs int `yaml:"cpus,omitempty"`
	// Sockets, with their host bridges. Switches, NICs and GPUs are below them. In a guest without
	// sockets each NIC has a PCIe switch of its own, and below that switch are the GPUs for which this
	// NIC is the first that reaches them.
	Sockets []Socket `yaml:"sockets,omitempty"`
	// Interconnect lists the links between sockets with their rates in each direction: s0-s1: 60GB/s.
	Interconnect map[string]Quantity `yaml:"interconnect,omitempty"`
	// Switches are the PCIe switches.
	Switches []Switch `yaml:"switches,omitempty"`
	// NICs of the guest. Programs that use only one NIC use the first.
	NICs []NIC `yaml:"nics"`
	// GPUs of the guest.
	GPUs []GPU `yaml:"gpus,omitempty"`
	// Driver of the GPUs: node (no driver: GPU memory is a NUMA node for a gVNIC, a PCI BAR for a
	// virtio NIC), or vnicgpu, with which the guest's kernel decides which NIC reaches which GPU.
	Driver string `yaml:"driver,omitempty" jsonschema:"enum=node,enum=vnicgpu"`
	// IOMMU makes the guest's kernel translate the addresses that its NICs use. All NICs must then be
	// gVNICs, and GPUs must not have the driver vnicgpu.
	IOMMU bool `yaml:"iommu,omitempty"`
}

// Socket is a CPU socket: a NUMA node with a host bridge.
type Socket struct {
	Name string `yaml:"name"`
	// P2P is which requests between endpoints the host bridge forwards: none, same-bridge (between its
	// own ports), or any (also to and from other host bridges with any).
	P2P string `yaml:"p2p,omitempty" jsonschema:"enum=none,enum=same-bridge,enum=any"`
	// DRAM is the rate of its memory, reads and writes together, as 300GB/s.
	DRAM Quantity `yaml:"dram,omitempty"`
}

// Slot is the place of a device in the tree.
type Slot struct {
	// Below is the name of the socket or switch whose port the device is in.
	Below string `yaml:"below,omitempty"`
	// Link is the generation and the number of lanes of the device's link to that port, as gen4x16.
	Link string `yaml:"link,omitempty" jsonschema:"pattern=^gen[1-6]x(1|2|4|8|12|16|32)$"`
	// ACSRedirect makes that port send requests for other endpoints upstream (PCIe Access Control
	// Services).
	ACSRedirect bool `yaml:"acs-redirect,omitempty"`
}

// Switch is a PCIe switch.
type Switch struct {
	Name string `yaml:"name"`
	Slot `yaml:",inline"`
}

// NIC is a network device.
type NIC struct {
	Name string `yaml:"name"`
	// Model is virtio or gve.
	Model string `yaml:"model,omitempty" jsonschema:"enum=virtio,enum=gve"`
	Slot  `yaml:",inline"`

	lab.NICOptions `yaml:",inline"`
	// Rate is the rate of its wire, in each direction, as 200Gbit.
	Rate Quantity `yaml:"rate,omitempty"`
	// Queues is the number of its queue pairs. The driver of a gve NIC may have twice as many.
	Queues int    `yaml:"queues,omitempty"`
	MAC    string `yaml:"mac,omitempty"`
	// IPv4 is the IPv4 address that the guest should give to the NIC, with the length of its prefix.
	IPv4 string `yaml:"ipv4,omitempty"`
	// IPv6 is the IPv6 address that the guest should give to the NIC, with the length of its prefix.
	IPv6 string `yaml:"ipv6,omitempty"`
	// GPUs are the names of the guest's GPUs that the NIC can reach; without this key it reaches all
	// of them.
	GPUs *[]string `yaml:"gpus,omitempty"`
	// Hotplug makes the NIC removable while its guest runs, also below a switch: its guest then sees a
	// link of 2.5 GT/s and one lane there. A virtio NIC of a tree with sockets that the file's script removes has it.
	Hotplug bool `yaml:"hotplug,omitempty"`
	// Timestamps makes a gVNIC offer receive timestamps (hwtstamp). Its driver then reads the NIC's
	// clock four times a second.
	Timestamps bool `yaml:"timestamps,omitempty"`
}

// GPU is memory that is neither the guest's RAM nor its CPUs'.
type GPU struct {
	Name string `yaml:"name"`
	Slot `yaml:",inline"`
	// Memory is its size, as 64M.
	Memory Quantity `yaml:"memory,omitempty"`
	// Hotplug makes the GPU removable while its guest runs, also below a switch: its guest then sees a
	// link of 2.5 GT/s and one lane there. A GPU of a tree with sockets that the file's script removes has it, unless
	// it is a NUMA node.
	Hotplug bool `yaml:"hotplug,omitempty"`
}

// Event is a change of the running lab and its time.
type Event struct {
	// At is the time of the change, from the start of the command's work, as 2s.
	At Quantity `yaml:"at"`
	// Set is the change, as the arguments of `vnic lab set`: link a.nic0 loss=1%.
	Set string `yaml:"set"`
}

// Uplink is a port of the switch that leads out of the lab: exactly one of vxlan, tap and stream.
type Uplink struct {
	// Name of the port in counters and captures.
	Name string `yaml:"name"`
	// Of is the guest whose host has the uplink, if each guest runs on a host of its own (vnic run
	// --guest). Without it each host has the uplink, also a host that runs all guests.
	Of string `yaml:"of,omitempty"`
	// VXLAN is a tunnel to one peer (RFC 7348).
	VXLAN *VXLAN `yaml:"vxlan,omitempty"`
	// Tap is the name of an existing tap device.
	Tap string `yaml:"tap,omitempty"`
	// Stream is a socket that carries frames in the format of QEMU's -netdev stream.
	Stream *uplink.Stream `yaml:"stream,omitempty"`
}

// VXLAN is a tunnel.
type VXLAN struct {
	// Local is the address and port of this machine at which the tunnel receives datagrams, as
	// 192.0.2.1:4789.
	Local string `yaml:"local"`
	// Remote is the address and port of the peer.
	Remote string `yaml:"remote"`
	// VNI is the VXLAN network identifier.
	VNI uint64 `yaml:"vni" jsonschema:"maximum=16777215"`
}

// Quantity is a number, with or without a unit.
type Quantity string

// Bounds of a file.
const (
	MaxSize   = 64 << 10 // bytes
	MaxLine   = 1 << 10  // bytes
	MaxTokens = 20_000   // words and punctuation of YAML
	MaxNodes  = 100_000  // YAML nodes without mappings' keys, counted after aliases are expanded
)
