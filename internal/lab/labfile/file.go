package labfile

import "github.com/goccy/go-yaml"

// File is a lab file as it is written.
type File struct {
	// Guests by their names, which begin with a letter.
	Guests map[string]Guest `yaml:"guests"`
	// Links from NICs to the switch that all NICs are on. One that is not named loses nothing.
	Links []Link `yaml:"links,omitempty"`
	// Script has what changes as time passes.
	Script []Event `yaml:"script,omitempty"`
	// Uplinks lead from the switch to other machines, to a tap of this one, or to another emulator.
	Uplinks []Uplink `yaml:"uplinks,omitempty"`
	// Gateway, where guests are booted or served, leads out of the first rail: nat, to this machine's network; isolated:
	// to the guests and their names; off: there is none. Without it the command decides.
	Gateway string `yaml:"gateway,omitempty" jsonschema:"enum=nat,enum=isolated,enum=off"`
	// Accel is how QEMU runs the guests: kvm; tcg, which emulates their CPUs; or auto: by KVM where it works.
	Accel string `yaml:"accel,omitempty" jsonschema:"enum=auto,enum=kvm,enum=tcg"`
	// P2P is on if NICs reach the memory of GPUs without a detour through host memory, where their PCIe tree
	// allows it, and off if they do not.
	P2P string `yaml:"p2p,omitempty" jsonschema:"enum=on,enum=off"`
	// Seed decides what is lost and held back; without one each run draws its own.
	Seed *uint64 `yaml:"seed,omitempty"`
	// Scale divides all rates, for an emulator that moves a thousandth of what hardware does: from 1, which is the
	// default.
	Scale Quantity `yaml:"scale,omitempty"`
}

// Guest is a machine.
type Guest struct {
	// Memory is its RAM, as 512M.
	Memory Quantity `yaml:"memory,omitempty"`
	// CPUs is how many it has.
	CPUs int `yaml:"cpus,omitempty"`
	// Sockets, with their host bridges. All else is below them, at some distance. Without any, each NIC has a
	// PCIe switch of its own, and below that are the GPUs that it is the first to reach.
	Sockets []Socket `yaml:"sockets,omitempty"`
	// Interconnect has the rates of links between sockets, in each direction: s0-s1: 60GB/s.
	Interconnect map[string]Quantity `yaml:"interconnect,omitempty"`
	// Switches of PCIe.
	Switches []Switch `yaml:"switches,omitempty"`
	// NICs. The first one is the NIC of programs that use only one.
	NICs []NIC `yaml:"nics"`
	// GPUs.
	GPUs []GPU `yaml:"gpus,omitempty"`
	// Driver of the GPUs: node, as no driver has them, or vnicgpu, so that the guest's kernel decides which NIC reaches
	// which GPU.
	Driver string `yaml:"driver,omitempty" jsonschema:"enum=node,enum=vnicgpu"`
	// IOMMU has the guest's kernel translate the addresses that its NICs use, which are gVNICs.
	IOMMU bool `yaml:"iommu,omitempty"`
}

// Socket is a CPU socket: a NUMA node with a host bridge.
type Socket struct {
	Name string `yaml:"name"`
	// P2P is what the host bridge forwards between endpoints: none, same-bridge (between its own ports), or any (also to
	// and from other host bridges that do).
	P2P string `yaml:"p2p,omitempty" jsonschema:"enum=none,enum=same-bridge,enum=any"`
	// DRAM is the rate of its memory, reads and writes together, as 300GB/s.
	DRAM Quantity `yaml:"dram,omitempty"`
}

// Slot is where something is plugged in.
type Slot struct {
	// Below is the name of the socket or switch that it is below.
	Below string `yaml:"below,omitempty"`
	// Link is generation and lanes of the link to that, as gen4x16.
	Link string `yaml:"link,omitempty" jsonschema:"pattern=^gen[1-6]x(1|2|4|8|12|16|32)$"`
	// ACSRedirect says that the port above sends requests for other endpoints upstream (PCIe Access Control Services).
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
	// MTU is the MTU of the link, with which the guest begins; the guest may raise it to MaxMTU.
	MTU    int `yaml:"mtu,omitempty"`
	MaxMTU int `yaml:"max-mtu,omitempty"`
	// Rate is the rate of its wire, in each direction, as 200Gbit.
	Rate Quantity `yaml:"rate,omitempty"`
	// RSCUsecs is for how many microseconds received frames of a TCP flow wait for more of the flow, to become one packet;
	// 0, the default: only frames of one batch become one packet.
	RSCUsecs int `yaml:"rsc-usecs,omitempty"`
	// Queues is how many pairs of queues it has. The driver of a gve NIC may have twice as many.
	Queues int    `yaml:"queues,omitempty"`
	MAC    string `yaml:"mac,omitempty"`
	// IPv4 and IPv6 are the addresses that the guest is to have there, with the length of their prefix.
	IPv4 string `yaml:"ipv4,omitempty"`
	IPv6 string `yaml:"ipv6,omitempty"`
	// XDP has a virtio NIC offload nothing for its guest to receive, so that the kernel's driver takes native XDP
	// programs.
	XDP bool `yaml:"xdp,omitempty"`
	// GPUs are the names of the guest's GPUs that it can reach; without, all of them.
	GPUs *[]string `yaml:"gpus,omitempty"`
	// Hotplug says that it can be removed while its guest runs, also where it is below a switch: its guest then sees a link
	// of 2.5 GT/s and one lane there. What the file's script removes has it.
	Hotplug bool `yaml:"hotplug,omitempty"`
	// Timestamps has a gVNIC offer timestamps of what it receives (hwtstamp). Its driver then asks it for the time four
	// times a second.
	Timestamps bool `yaml:"timestamps,omitempty"`
}

// GPU is memory that is neither RAM nor the CPUs'.
type GPU struct {
	Name string `yaml:"name"`
	Slot `yaml:",inline"`
	// Memory is its size, as 64M.
	Memory Quantity `yaml:"memory,omitempty"`
	// Hotplug says that it can be removed while its guest runs, also where it is below a switch: its guest then sees a link
	// of 2.5 GT/s and one lane there. What the file's script removes has it.
	Hotplug bool `yaml:"hotplug,omitempty"`
}

// Event is a change at a time.
type Event struct {
	// At is when, from the beginning of what the lab is for, as 2s.
	At Quantity `yaml:"at"`
	// Set is what `vnic lab set` takes, as link a.nic0 loss=1%.
	Set string `yaml:"set"`
}

// Uplink is a port of the switch that leads out: by one of vxlan, tap and stream.
type Uplink struct {
	// Name of the port, in counters and captures.
	Name string `yaml:"name"`
	// Of is the guest whose host has it, where each guest is on a host of its own (vnic run --guest). Without, each host
	// has it, also one that runs all guests.
	Of string `yaml:"of,omitempty"`
	// VXLAN is a tunnel to one peer (RFC 7348).
	VXLAN *VXLAN `yaml:"vxlan,omitempty"`
	// Tap is the name of a tap device that is there already.
	Tap string `yaml:"tap,omitempty"`
	// Stream is a socket with frames as QEMU's -netdev stream has them.
	Stream *Stream `yaml:"stream,omitempty"`
}

// VXLAN is a tunnel.
type VXLAN struct {
	// Local is where datagrams come to, an address of this machine and a port, as 192.0.2.1:4789.
	Local string `yaml:"local"`
	// Remote is the peer's.
	Remote string `yaml:"remote"`
	// VNI is the number of the network.
	VNI uint64 `yaml:"vni" jsonschema:"maximum=16777215"`
}

// Stream is a socket: a file's name with a slash in it, or HOST:PORT. One side listens, the other connects.
type Stream struct {
	Listen  string `yaml:"listen,omitempty"`
	Connect string `yaml:"connect,omitempty"`
}

// Quantity is a number, with or without a unit.
type Quantity string

// Bounds of a file.
const (
	MaxSize   = 64 << 10 // bytes
	MaxLine   = 1 << 10  // bytes of a line
	MaxTokens = 20_000   // words and signs of YAML
	MaxNodes  = 100_000  // parts, with aliases written out
)

var _ yaml.InterfaceMarshaler = ordered{}

// ordered is guests in an order, to be written.
type ordered struct {
	names  []string
	guests map[string]Guest
}

// MarshalYAML writes a mapping.
func (o ordered) MarshalYAML() (any, error) {
	m := make(yaml.MapSlice, 0, len(o.names))
	for _, name := range o.names {
		m = append(m, yaml.MapItem{Key: name, Value: o.guests[name]})
	}
	return m, nil
}
