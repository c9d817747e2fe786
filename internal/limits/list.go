package limits

import "time"

// knownBoot is the longest boot of a guest on a machine with Slow 1: from QEMU's start until its
// init reports.
const knownBoot = 12 * time.Second

// knownStart is the longest time that a QEMU takes, on such a machine, to print its version.
const knownStart = 150 * time.Millisecond

// Limits of QEMU and of guests as a whole.
const (
	// ProbeSilence is how long the guest of a KVM probe may print nothing before the probe fails.
	ProbeSilence = Limit(2 * time.Second)
	// Probe is how long the guest of a KVM probe may take to boot while it prints.
	Probe = Limit(15 * time.Second)
	// GuestSilence is how long other guests with KVM may print nothing before their init reports, if the
	// user has requested neither KVM nor a longer boot. Their kernels print little, so it covers the whole
	// boot.
	GuestSilence = Limit(time.Minute)
	// Boot is how long a guest may take until its init reports. A boot takes seconds, but the machine
	// may be small and busy.
	Boot = Limit(3 * time.Minute)
	// Machine is how long a guest may run if nobody sets a time.
	Machine = Limit(10 * time.Minute)
	// GuestsRun is how long guests may run if nobody ends them.
	GuestsRun = Limit(6 * time.Hour)
	// TransferGuest is how long a guest of a transfer may run, in addition to the time for its
	// bytes.
	TransferGuest = Limit(time.Hour)
	// QEMUVersion is how long a QEMU may take to report its abilities.
	QEMUVersion = Limit(20 * time.Second)
	// Monitor is how long QEMU may take for a command of its monitor if the caller sets no limit.
	Monitor = Limit(10 * time.Second)
	// QEMUEnd is how long QEMU may take to answer a command that needs no work, and to end after that or after
	// SIGTERM: a guest has nothing to save, and a user who presses Ctrl-C does not want to wait.
	QEMUEnd = Limit(time.Second)
	// GuestEnd is how long this process may take to notice the end of a connection to a QEMU or a
	// guest that has ended.
	GuestEnd = Limit(2 * time.Second)
	// PowerOff is how long a guest with a kept console may take to power off.
	PowerOff = Limit(10 * time.Second)
	// Unplug is how long a guest may take to release a device. Linux takes six seconds.
	Unplug = Limit(2 * time.Minute)
)

// Limits of guests' inits, agents, devices and programs.
const (
	// ResultsPort is how long a virtio port may take to appear, and to be connected: QEMU reports
	// both after the driver has started.
	ResultsPort = Limit(3 * time.Second)
	// LastOutput is how long the output streams of a program may stay open after its end: its
	// children may hold them open.
	LastOutput = Limit(time.Second)
	// SessionOutput is the silence after which the output of an ended program counts as complete.
	SessionOutput = Limit(500 * time.Millisecond)
	// AgentStop is how long an ending agent waits for operations that it has stopped.
	AgentStop = Limit(5 * time.Second)
	// AgentCancel is how long the other end, such as an agent, may take to receive the message that cancels an
	// operation.
	AgentCancel = Limit(time.Second)
	// Disk is how long a disk or a namespace may take to appear.
	Disk = Limit(30 * time.Second)
	// Interface is how long a network interface may take to appear after its driver was loaded.
	Interface = Limit(20 * time.Second)
	// ImageInterface is Interface in a guest of an image, which may have no interface.
	ImageInterface = Limit(5 * time.Second)
	// InterfaceReady is how long interfaces may take from up until they can be used. The driver
	// gets its link's state by an interrupt, which may be late on a busy machine.
	InterfaceReady = Limit(15 * time.Second)
	// Lease is how long a DHCP server may take for its first answer; each later try waits twice as
	// long. A server on the same machine needs milliseconds.
	Lease = Limit(160 * time.Millisecond)
	// Terminal is how long a terminal may take to report its size.
	Terminal = Limit(500 * time.Millisecond)
	// Initiator is how long a kernel's NVMe initiator may take to end a failed connection.
	Initiator = Limit(3 * time.Second)
	// Interpreter is how long an interpreter on this machine may take to print the path of its
	// library.
	Interpreter = Limit(20 * time.Second)
)

// Limits of devices and their drivers.
const (
	// DeviceReset is how long a virtio device may take to be reset.
	DeviceReset = Limit(5 * time.Second)
	// DeviceCommand is how long a command of a virtio device's control queue may take.
	DeviceCommand = Limit(5 * time.Second)
	// BackendStop is how long a vhost-user backend may take to stop.
	BackendStop = Limit(5 * time.Second)
	// Control is how long an in-band command to a NIC may take if its caller sets no limit.
	Control = Limit(10 * time.Second)
	// GVECommand is how long a gVNIC with the kernel's driver may take for in-band commands.
	GVECommand = Limit(10 * time.Second)
	// Unbind is how long a closed binding may take until its memory is unused.
	Unbind = Limit(10 * time.Second)
	// Flush is how long memory of a closed binding may stay in use before the device makes the
	// interface send packets that are stuck there.
	Flush = Limit(500 * time.Millisecond)
	// DeadProcess is how long the network may keep using memory of a killed process.
	DeadProcess = Limit(20 * time.Second)
	// Engine is the minimum limit of a GPU engine's job.
	Engine = Limit(30 * time.Second)
)

// Limits of NICs.
const (
	// Patience is how long a frame waits for a receiver without buffers.
	Patience = Limit(500 * time.Millisecond)
	// FirstPenalty is how long, after Patience has expired for a receiver, frames to that receiver do
	// not wait. The time grows at each further expiry, up to LastPenalty.
	FirstPenalty = Limit(2 * time.Second)
	LastPenalty  = Limit(32 * time.Second)
	// StuckWrite is how long a write to a frontend's eventfd may block.
	StuckWrite = Limit(500 * time.Millisecond)
	// Page is how long a GPU's driver may take for a page that RDMA requests.
	Page = Limit(4 * time.Second)
	// Frontend is how long a vhost-user frontend in a process waits for an answer; before some answers
	// the backend drains a queue.
	Frontend = Limit(30 * time.Second)
	// QEMUReply is how long QEMU waits for an answer of a vfio-user server.
	QEMUReply = Limit(5 * time.Second)
	// Drain is how long a vfio-user client that does not read its answers may delay the end of its
	// server.
	Drain = Limit(time.Second)
	// Connected is how long a process may send nothing after it has connected to a port: QEMU sends at
	// once.
	Connected = Limit(10 * time.Second)
	// Takeover is how long a port's new connection waits for the end of the old one.
	Takeover = Limit(time.Second)
	// Tokens is how long a guest may take to report the holders of its tokens; after that its
	// report is left out.
	Tokens = Limit(250 * time.Millisecond)
	// Counted is how long a worker may take to count the frames that it has delivered: it only
	// needs a processor.
	Counted = Limit(20 * time.Second)
)

// Limits of programs on this machine.
const (
	// Broker is how long the process outside of the sandbox may take for a request, except for a
	// connection.
	Broker = Limit(5 * time.Second)
	// LocalServer is how long a local server may take to answer, and LocalClient how long a client
	// may take to read the answer.
	LocalServer = Limit(5 * time.Second)
	LocalClient = Limit(5 * time.Second)
	// PageEnd is how long the page waits for its clients when it ends.
	PageEnd = Limit(500 * time.Millisecond)
	// Directory is how long another process may hold the lock of a socket's directory. A vnic holds
	// it for a millisecond.
	Directory = Limit(2 * time.Second)
	// Dial is how long the host's network may take for a guest's connection, and then the guest to
	// confirm it; Resolver is how long one of the host's resolvers may take.
	Dial     = Limit(10 * time.Second)
	Resolver = Limit(2 * time.Second)
	// Uplink is how long the other end of an uplink may take to accept our connection.
	Uplink = Limit(5 * time.Second)
	// CaptureEnd is how long the reader of a capture may read nothing at the end of the capture.
	CaptureEnd = Limit(2 * time.Second)
)

// Limits of peers, in guests and on this machine.
const (
	// Stall is how long a transfer may make no progress.
	Stall = Limit(time.Minute)
	// ProgramStall is Stall for the connections of a program in a guest.
	ProgramStall = Limit(30 * time.Second)
	// Peer is how long a program's peer may take to start: a guest boots in seconds.
	Peer = Limit(time.Minute)
	// CloseWait is how long the peer of a connection may take to close its end too.
	CloseWait = Limit(5 * time.Second)
	// Linger is how long a closed connection tries to send data that is not acknowledged.
	Linger = Limit(2 * time.Minute)
	// Silence is how long a neighbour, a target or a server may send neither a byte nor an
	// acknowledgment.
	Silence = Limit(5 * time.Second)
	// ServerBack is how long a server of objects may be unavailable.
	ServerBack = Limit(30 * time.Second)
	// LastWords is how long this end reads from a peer after a write to it failed, and how long the
	// peer may take to read the last error.
	LastWords = Limit(time.Second)
	// Exchange is how long two ends of RDMA may take to exchange their values.
	Exchange = Limit(30 * time.Second)
	// LossFreeRTO is the minimum retransmission timeout where nothing is lost: there an
	// acknowledgment is late because a guest did not run, and a retransmission would spoil the
	// counts.
	LossFreeRTO = Limit(3 * time.Second)
	// MinRTO and MinRTORACK are the minimum retransmission timeouts of our stack, without and with
	// RACK. The gateway uses MinRTORACK too.
	MinRTO     = Limit(time.Second)
	MinRTORACK = Limit(200 * time.Millisecond)
)

// Limits of commands that run guests.
const (
	// Setup is how long a guest may take to set up its NIC.
	Setup = Limit(time.Minute)
	// SelftestSetup is how long a guest may take to be ready for a selftest.
	SelftestSetup = Limit(2 * time.Minute)
	// Selftest is how long a program of the kernel's selftests may take, unless a user sets a time.
	Selftest = Limit(15 * time.Minute)
	// Finish is how long the end of a transfer may take if its caller sets no limit.
	Finish = Limit(20 * time.Second)
	// Ask is how long a guest may take to answer a request that needs no work.
	Ask = Limit(20 * time.Second)
	// AskState is how long a guest may take to report the state of its connection, for an error.
	AskState = Limit(3 * time.Second)
	// Host is how long the vnic of another host may take to start.
	Host = Limit(5 * time.Minute)
	// OtherHost is how long the vnic of another host may take to end after the last message.
	OtherHost = Limit(3 * time.Second)
	// DialHost is how long one attempt to connect to another host may take.
	DialHost = Limit(5 * time.Second)
	// Connect is how long guests may take to connect queue pairs: links may lose segments.
	Connect = Limit(time.Minute)
	// Disturbed is how long a transfer may take to fail after a disturbance; the kernel of a guest
	// that loses a device waits for five seconds first.
	Disturbed = Limit(2 * time.Minute)
	// Failed is how long an injected fault may take to be complete after a round has failed.
	Failed = Limit(time.Minute)
	// StorageServer is how long a storage server may take to listen.
	StorageServer = Limit(10 * time.Second)
	// Bench is how long a measurement may make no progress.
	Bench = Limit(20 * time.Second)
)
