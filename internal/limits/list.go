package limits

import "time"

// knownBoot is what a guest takes to boot, at most, on a machine for which Slow is 1: from QEMU's start until its init
// reports.
const knownBoot = 12 * time.Second

// knownStart is what a QEMU takes at most, on such a machine, to say its version.
const knownStart = 150 * time.Millisecond

// How long QEMU may take, and a guest to be there.
const (
	// ProbeSilence is how long the guest of a KVM probe may print nothing before the probe has failed.
	ProbeSilence = Limit(2 * time.Second)
	// Probe is how long that guest may take to boot, as long as it prints something.
	Probe = Limit(15 * time.Second)
	// GuestSilence is the same for other guests by KVM, where nobody has asked for it. Their kernels are quiet, so it is
	// the time for all of the boot.
	GuestSilence = Limit(time.Minute)
	// Boot is how long a guest may take until its init reports: seconds, but it may share a small machine with much else.
	Boot = Limit(3 * time.Minute)
	// Machine is how long a guest may run for which nobody says how long.
	Machine = Limit(10 * time.Minute)
	// GuestsRun is how long guests may run that nobody ends.
	GuestsRun = Limit(6 * time.Hour)
	// TransferGuest is how long a guest of a transfer may run, besides the time for its bytes.
	TransferGuest = Limit(time.Hour)
	// QEMUVersion is how long a QEMU may take to say what it can do.
	QEMUVersion = Limit(20 * time.Second)
	// Monitor is how long QEMU may take to take a command of its monitor.
	Monitor = Limit(10 * time.Second)
	// QEMUEnd is how long QEMU has to answer, and to go after SIGTERM. There is nothing in a guest to be saved, and a
	// user who presses Ctrl-C does not want to wait.
	QEMUEnd = Limit(time.Second)
	// GuestEnd is how long the end of a connection to a QEMU that is gone, or whose guest is, may take to be seen.
	GuestEnd = Limit(2 * time.Second)
	// PowerOff is how long a guest whose console is kept may take to switch itself off.
	PowerOff = Limit(10 * time.Second)
	// Unplug is how long a guest has to let go of a device: it takes six seconds.
	Unplug = Limit(2 * time.Minute)
)

// What a guest's init, its agent and its kernel's devices have.
const (
	// ResultsPort is how long a virtio port may take to appear, and to be connected: QEMU tells of both after the
	// driver's start.
	ResultsPort = Limit(3 * time.Second)
	// LastOutput is how long the streams of an agent, or of a program of it, may be open after its end: its children may
	// hold them.
	LastOutput = Limit(time.Second)
	// SessionOutput is how long the output of a program that has ended may stay silent until it is taken for whole.
	SessionOutput = Limit(500 * time.Millisecond)
	// AgentStop is how long an agent waits, at its end, for operations that were told to stop.
	AgentStop = Limit(5 * time.Second)
	// AgentCancel is how long an agent may take to take the message that an operation is cancelled.
	AgentCancel = Limit(time.Second)
	// Disk is how long a disk or a namespace may take to appear.
	Disk = Limit(30 * time.Second)
	// Interface is how long a network interface may take to appear, once its driver is loaded.
	Interface = Limit(20 * time.Second)
	// ImageInterface is the same in a guest of an image, whose user may have given it none.
	ImageInterface = Limit(5 * time.Second)
	// InterfaceReady is how long interfaces may take from up until they can be used. A driver hears of its link by an
	// interrupt, which on a busy machine is late.
	InterfaceReady = Limit(15 * time.Second)
	// Lease is how long a DHCP server may take for its first answer; each next try waits twice as long. One on the same
	// machine needs milliseconds.
	Lease = Limit(160 * time.Millisecond)
	// Terminal is how long a terminal may take to say its size.
	Terminal = Limit(500 * time.Millisecond)
	// Initiator is how long a kernel's NVMe initiator may take to end a connection that has failed.
	Initiator = Limit(3 * time.Second)
	// Interpreter is how long an interpreter of this machine may take to say where its library is.
	Interpreter = Limit(20 * time.Second)
)

// What drivers wait for: ours, and what tells the kernel's what to do.
const (
	// DeviceReset is how long a virtio device may take to be reset.
	DeviceReset = Limit(5 * time.Second)
	// DeviceCommand is how long a command of a virtio device's control queue may take.
	DeviceCommand = Limit(5 * time.Second)
	// BackendStop is how long a vhost-user backend may take to stop.
	BackendStop = Limit(5 * time.Second)
	// Control is how long an in-band command to a NIC may take, where its caller sets no limit.
	Control = Limit(10 * time.Second)
	// GVECommand is how long a gVNIC may take for what is asked of the kernel's driver.
	GVECommand = Limit(10 * time.Second)
	// Unbind is how long a binding may take until its memory is out of use.
	Unbind = Limit(10 * time.Second)
	// Flush is how long memory may stay in use before the interface is looked at for packets that wait for nothing.
	Flush = Limit(500 * time.Millisecond)
	// DeadProcess is how long the memory of a process that was killed may be with the network.
	DeadProcess = Limit(20 * time.Second)
	// Engine is how long a GPU's engine may take for a job, at least.
	Engine = Limit(30 * time.Second)
)

// What NICs wait for.
const (
	// Patience is how long a frame waits for a receiver without buffers.
	Patience = Limit(500 * time.Millisecond)
	// FirstPenalty and LastPenalty are how long after that frames to the same receiver are not waited for: the first
	// time, and at most.
	FirstPenalty = Limit(2 * time.Second)
	LastPenalty  = Limit(32 * time.Second)
	// StuckWrite is how long a write to a frontend's eventfd may block.
	StuckWrite = Limit(500 * time.Millisecond)
	// Page is how long a GPU's driver may take for a page that RDMA asks for.
	Page = Limit(4 * time.Second)
	// Frontend is how long a vhost-user frontend in a process waits for an answer; a queue is drained before some.
	Frontend = Limit(30 * time.Second)
	// QEMUReply is how long QEMU waits for an answer of a vfio-user server.
	QEMUReply = Limit(5 * time.Second)
	// Drain is how long a vfio-user client that does not read its answers may delay the end of its server.
	Drain = Limit(time.Second)
	// Connected is how long a process that has connected to a port may say nothing: QEMU speaks at once.
	Connected = Limit(10 * time.Second)
	// Takeover is how long a port's new connection waits for the end of the one before.
	Takeover = Limit(time.Second)
	// Tokens is how long a guest may take to say who holds its tokens; one that is late says nothing.
	Tokens = Limit(250 * time.Millisecond)
	// Counted is how long a worker may take to count what it has delivered: it has only to get a processor.
	Counted = Limit(20 * time.Second)
)

// What programs of this machine wait for.
const (
	// Broker is how long the process outside of the sandbox may take for anything but a connection.
	Broker = Limit(5 * time.Second)
	// LocalServer is how long a server of ours may say nothing, and LocalClient how long a client may take to take what
	// it has asked for.
	LocalServer = Limit(5 * time.Second)
	LocalClient = Limit(5 * time.Second)
	// PageEnd is how long the page's clients have at its end.
	PageEnd = Limit(500 * time.Millisecond)
	// Directory is how long another vnic may hold the lock of a socket's directory: it takes a millisecond.
	Directory = Limit(2 * time.Second)
	// Dial is how long the host's network may take for a guest's connection, and then the guest to confirm it; Resolver
	// is how long one of the host's resolvers may take.
	Dial     = Limit(10 * time.Second)
	Resolver = Limit(2 * time.Second)
	// Uplink is how long the other end of an uplink may take to take our connection.
	Uplink = Limit(5 * time.Second)
	// CaptureEnd is how long who reads a capture may take nothing, at its end.
	CaptureEnd = Limit(2 * time.Second)
)

// What peers wait for, in guests and here.
const (
	// Stall is how long a transfer may make no progress.
	Stall = Limit(time.Minute)
	// ProgramStall is the same for the connections of a program in a guest.
	ProgramStall = Limit(30 * time.Second)
	// Peer is how long a program's peer may take to be there: a guest boots in seconds.
	Peer = Limit(time.Minute)
	// CloseWait is how long the peer of a connection may take to close its end, too.
	CloseWait = Limit(5 * time.Second)
	// Linger is how long a connection that was closed tries to send what is not acknowledged.
	Linger = Limit(2 * time.Minute)
	// Silence is how long there may be neither byte nor acknowledgment from a neighbour, a target or a server.
	Silence = Limit(5 * time.Second)
	// ServerBack is how long a server of objects may be away.
	ServerBack = Limit(30 * time.Second)
	// LastWords is how long a peer is heard that cannot be sent to any more, or has to read why this end gives up.
	LastWords = Limit(time.Second)
	// Exchange is how long two ends of RDMA may take to tell each other what they have.
	Exchange = Limit(30 * time.Second)
	// LossFreeRTO is the least retransmission timeout where nothing is lost: an acknowledgement that is late is so
	// because a guest did not run, and what is sent again all the same would spoil the counts.
	LossFreeRTO = Limit(3 * time.Second)
	// MinRTO and MinRTORACK are the least ones of our stack, without RACK and with it. The gateway's is the latter, too.
	MinRTO     = Limit(time.Second)
	MinRTORACK = Limit(200 * time.Millisecond)
)

// What the commands that have guests wait for.
const (
	// Setup is how long a guest may take to take its NIC.
	Setup = Limit(time.Minute)
	// SelftestSetup is how long a guest may take to be ready for a selftest.
	SelftestSetup = Limit(2 * time.Minute)
	// Selftest is how long a program of the kernel's selftests may take, unless a user says.
	Selftest = Limit(15 * time.Minute)
	// Finish is how long the end of a transfer may take, where its caller sets no limit.
	Finish = Limit(20 * time.Second)
	// Ask is how long a guest may take to answer that does nothing for it.
	Ask = Limit(20 * time.Second)
	// AskState is how long a guest may take to say how its connection is, for an error.
	AskState = Limit(3 * time.Second)
	// Host is how long the vnic of another host may take to be started.
	Host = Limit(5 * time.Minute)
	// OtherHost is how long the vnic of another host may take at the end, when all is said.
	OtherHost = Limit(3 * time.Second)
	// DialHost is how long one try to connect to it may take.
	DialHost = Limit(5 * time.Second)
	// Connect is how long guests may take to connect queue pairs: links may lose segments.
	Connect = Limit(time.Minute)
	// Disturbed is how long what is done to a transfer may take until it has failed; the kernel of a guest that loses a
	// device waits for five seconds first.
	Disturbed = Limit(2 * time.Minute)
	// Failed is how long after a round has failed it may take until what was to go wrong has.
	Failed = Limit(time.Minute)
	// StorageServer is how long a storage server may take to listen.
	StorageServer = Limit(10 * time.Second)
	// Bench is how long nothing may move in a measurement.
	Bench = Limit(20 * time.Second)
)
