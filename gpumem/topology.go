package gpumem

// PathKind is how a NIC reaches a GPU's memory.
type PathKind uint8

// Kinds of paths (drivers/pci/p2pdma.c: enum pci_p2pdma_map_type).
const (
	PathNone       PathKind = iota // not at all: payload is bounced through host memory
	PathBus                        // below a common switch
	PathHostBridge                 // through a root complex that allows it
)

// Path is the way between two devices.
type Path struct {
	Kind   PathKind
	Reason string // why, for people
}

// P2P reports whether payload may go this way without a bounce.
func (p Path) P2P() bool { return p.Kind != PathNone }

// Topology is a PCIe tree and the policy on it.
type Topology struct{}

// NewTopology returns an empty tree.
func NewTopology() *Topology { return &Topology{} }

// SetOff forbids every peer-to-peer path (--p2p off).
func (t *Topology) SetOff(off bool) {}

// AddRoot adds a root complex; p2p says whether it forwards between its ports.
func (t *Topology) AddRoot(name string, p2p bool) error { return errNotYet }

// AddSwitch adds a switch below a root or a switch; redirect says that it sends peer traffic up (ACS).
func (t *Topology) AddSwitch(name, parent string, redirect bool) error { return errNotYet }

// AddDevice adds a NIC or GPU.
func (t *Topology) AddDevice(name, parent string) error { return errNotYet }

// Path returns the way between two devices.
func (t *Topology) Path(a, b string) (Path, error) { return Path{}, errNotYet }

// Place returns where a device is: "rc0/sw0/gpu0".
func (t *Topology) Place(name string) string { return "" }
