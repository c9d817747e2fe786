package limits

import "time"

// knownBoot is the longest boot of a guest with Slow 1: from QEMU's start until its init reports.
const knownBoot = 12 * time.Second

// knownStart is the longest time that a QEMU takes to print its version with Slow 1.
const knownStart = 150 * time.Millisecond

// Limits of QEMU and guests.
const (
	// ProbeSilence is how long the guest of a KVM probe may print nothing.
	ProbeSilence = Limit(2 * time.Second)
	// Probe is how long the guest of a KVM probe may take until its init reports.
	Probe = Limit(15 * time.Second)
	// GuestSilence is how long by default other guests may print nothing before their init reports, if vnic has
	// chosen KVM and the limit of their boot is not above Boot.
	GuestSilence = Limit(time.Minute)
	// Boot is how long a guest may take by default until its init reports.
	Boot = Limit(3 * time.Minute)
	// Machine is how long a guest of qemu.Start may run by default.
	Machine = Limit(10 * time.Minute)
	// GuestsRun is how long the guests of a session.Set may run.
	GuestsRun = Limit(6 * time.Hour)
	// TransferGuest is how long a guest of a transfer may run, besides the time for its bytes.
	TransferGuest = Limit(time.Hour)
	// QEMUVersion is how long a QEMU may take to print its version.
	QEMUVersion = Limit(20 * time.Second)
	// Monitor is how long it may take to write a command to QEMU's monitor, if the caller sets no deadline.
	Monitor = Limit(10 * time.Second)
	// QEMUEnd is how long QEMU may take to answer a command that needs no work, and to end.
	QEMUEnd = Limit(time.Second)
	// GuestEnd is how long this process may take to notice that a guest or a connection has ended.
	GuestEnd = Limit(2 * time.Second)
	// PowerOff is how long a guest may take to power off.
	PowerOff = Limit(10 * time.Second)
	// Unplug is how long a guest may take to release a device.
	Unplug = Limit(2 * time.Minute)
)

// Limits of programs in guests.
const (
	// ResultsPort is how long a virtio port may take to appear and to be connected.
	ResultsPort = Limit(3 * time.Second)
	// LastOutput is how long a program's output may stay open after its end, as by its children.
	LastOutput = Limit(time.Second)
	// SessionOutput is the silence after which an ended program's output counts as complete.
	SessionOutput = Limit(500 * time.Millisecond)
	// AgentStop is how long an ending agent waits for its operations.
	AgentStop = Limit(5 * time.Second)
	// AgentCancel is how long the other end may take to receive a cancellation.
	AgentCancel = Limit(time.Second)
	// Disk is how long a disk or a namespace may take to appear.
	Disk = Limit(30 * time.Second)
	// Interface is how long a network interface may take to appear.
	Interface = Limit(20 * time.Second)
	// ImageInterface is Interface in a guest of an image, which may have none.
	ImageInterface = Limit(5 * time.Second)
	// InterfaceReady is how long an interface that is up may take until it can be used.
	InterfaceReady = Limit(15 * time.Second)
	// Lease is how long a DHCP client waits for an answer to its first try; each later try waits twice as long.
	Lease = Limit(160 * time.Millisecond)
	// Terminal is how long a terminal may take to report its size.
	Terminal = Limit(500 * time.Millisecond)
	// Initiator is how long the kernel's NVMe initiator may take to end a failed connection.
	Initiator = Limit(3 * time.Second)
	// Interpreter is how long an interpreter may take to print the path of its library.
	Interpreter = Limit(20 * time.Second)
)

// Limits of devices and drivers.
const (
	// DeviceReset is how long a virtio device may take to be reset.
	DeviceReset = Limit(5 * time.Second)
	// DeviceCommand is how long a virtio control queue's command may take.
	DeviceCommand = Limit(5 * time.Second)
	// BackendStop is how long a vhost-user backend may take for each answer while its queues are stopped.
	BackendStop = Limit(5 * time.Second)
	// Control is how long a NIC's in-band command may take by default.
	Control = Limit(10 * time.Second)
	// GVECommand is how long in-band commands below the kernel's driver gve may take.
	GVECommand = Limit(10 * time.Second)
	// Unbind is how long memory of a closed binding may be in use.
	Unbind = Limit(10 * time.Second)
	// Flush is how long memory of a closed binding may be in use before stuck packets are flushed.
	Flush = Limit(500 * time.Millisecond)
	// DeadProcess is how long memory of a killed process may be in use.
	DeadProcess = Limit(20 * time.Second)
	// Engine is the least limit of a GPU engine's job.
	Engine = Limit(30 * time.Second)
)

// Limits of NICs.
const (
	// Patience is how long a frame waits by default for a receiver without buffers.
	Patience = Limit(500 * time.Millisecond)
	// FirstPenalty is how long frames to a receiver do not wait after Patience has expired, unless it has had buffers
	// since; it grows, up to LastPenalty.
	FirstPenalty = Limit(2 * time.Second)
	LastPenalty  = Limit(32 * time.Second)
	// StuckWrite is how long a write to a frontend's eventfd may block.
	StuckWrite = Limit(500 * time.Millisecond)
	// Page is how long a GPU's driver may take for a page that RDMA requests.
	Page = Limit(4 * time.Second)
	// Frontend is how long a vhost-user frontend waits for an answer by default.
	Frontend = Limit(30 * time.Second)
	// QEMUReply is how long QEMU waits for a vfio-user server.
	QEMUReply = Limit(5 * time.Second)
	// Drain is how long a client that reads no answers may delay the end of a vfio-user server.
	Drain = Limit(time.Second)
	// Connected is how long a new connection to a port may be silent.
	Connected = Limit(10 * time.Second)
	// Takeover is how long a port's new connection waits for the end of the old one.
	Takeover = Limit(time.Second)
	// Tokens is how long a guest may take to report the holders of tokens.
	Tokens = Limit(250 * time.Millisecond)
	// Counted is how long a worker may take to count delivered frames, and at least how long a capture's interrupted
	// write may take to return.
	Counted = Limit(20 * time.Second)
)

// Limits of programs on this machine.
const (
	// Broker is how long the process outside of the sandbox may take for a request.
	Broker = Limit(5 * time.Second)
	// LocalServer is how long a local server may take to answer, LocalClient how long a client may take to read
	// the answer.
	LocalServer = Limit(5 * time.Second)
	LocalClient = Limit(5 * time.Second)
	// PageEnd is how long the page waits for its clients when it ends.
	PageEnd = Limit(500 * time.Millisecond)
	// Directory is how long another process may hold the lock of a socket's directory.
	Directory = Limit(2 * time.Second)
	// Dial is how long either end of a connection between a guest and the host's network may take to accept it,
	// Resolver how long a resolver may take to answer.
	Dial     = Limit(10 * time.Second)
	Resolver = Limit(2 * time.Second)
	// Uplink is how long the other end of an uplink may take to accept a connection.
	Uplink = Limit(5 * time.Second)
	// CaptureEnd is how long the reader may be idle at a capture's end.
	CaptureEnd = Limit(2 * time.Second)
)

// Limits of peers.
const (
	// Stall is how long a transfer may make no progress by default.
	Stall = Limit(time.Minute)
	// ProgramStall is the same for the connections of a program in a guest.
	ProgramStall = Limit(30 * time.Second)
	// Peer is how long a program's peer may take to start by default, and an HTTP connection of Long may be idle.
	Peer = Limit(time.Minute)
	// CloseWait is how long the peer of a connection may take to close its end too, and a storage server to end.
	CloseWait = Limit(5 * time.Second)
	// Linger is how long a closed connection tries to send unacknowledged data.
	Linger = Limit(2 * time.Minute)
	// Silence is how long a neighbour, target or server may send nothing by default.
	Silence = Limit(5 * time.Second)
	// ServerBack is how long a server of objects may be unavailable by default.
	ServerBack = Limit(30 * time.Second)
	// LastWords is how long to read from a peer after a write failed, and how long the peer may take to read the
	// last error, or the last answer of vnic's web server.
	LastWords = Limit(time.Second)
	// Exchange is how long two ends of RDMA may take by default to exchange their values.
	Exchange = Limit(30 * time.Second)
	// LossFreeRTO is the least retransmission timeout where nothing is lost: a late acknowledgment there means
	// that a guest did not run.
	LossFreeRTO = Limit(3 * time.Second)
	// MinRTO and MinRTORACK are least retransmission timeouts, without and with RACK.
	MinRTO     = Limit(time.Second)
	MinRTORACK = Limit(200 * time.Millisecond)
)

// Limits of commands that run guests.
const (
	// Setup is how long a guest may take to set up its NIC or an NVMe target.
	Setup = Limit(time.Minute)
	// SelftestSetup is how long a guest may take to prepare a selftest.
	SelftestSetup = Limit(2 * time.Minute)
	// Selftest is how long a program of the kernel's selftests may take by default.
	Selftest = Limit(15 * time.Minute)
	// Finish is how long the end of a transfer may take.
	Finish = Limit(20 * time.Second)
	// Ask is how long a guest may take for a request that needs no work.
	Ask = Limit(20 * time.Second)
	// AskState is how long a guest may take to report a connection's state.
	AskState = Limit(3 * time.Second)
	// Host is how long the vnic of another host may take by default to start.
	Host = Limit(5 * time.Minute)
	// OtherHost is how long another host's vnic may take to report an error, or to end.
	OtherHost = Limit(3 * time.Second)
	// DialHost is how long one attempt to connect to another host may take.
	DialHost = Limit(5 * time.Second)
	// Connect is how long guests may take to connect queue pairs.
	Connect = Limit(time.Minute)
	// Disturbed is how long a transfer may take to fail after a disturbance.
	Disturbed = Limit(2 * time.Minute)
	// Failed is how long a fault may take to be injected after a round has failed.
	Failed = Limit(time.Minute)
	// StorageServer is how long a storage server may take to listen.
	StorageServer = Limit(10 * time.Second)
	// Bench is how long a measurement may make no progress.
	Bench = Limit(20 * time.Second)
)
