package limits

import "time"

// knownBoot is the longest time from QEMU's start until a guest's init reports for which Booted leaves Slow at 1.
const knownBoot = 12 * time.Second

// knownStart is the longest time that a QEMU takes to print its version for which Started returns 1.
const knownStart = 150 * time.Millisecond

// Limits of QEMU and guests.
const (
	// ProbeSilence is how long the guest of a KVM probe may print nothing before its init reports.
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
	// QEMUEnd is how long QEMU may take to answer a command that needs no work, to end when vnic asks it by QMP, and to
	// end after SIGTERM.
	QEMUEnd = Limit(time.Second)
	// GuestEnd is how long QEMU may take to end after its guest's agent has ended, and how long a lab that is closed
	// waits for connections to end by themselves, if lab.Options.Farewell is this base.
	GuestEnd = Limit(2 * time.Second)
	// PowerOff is how long a guest of vnic boot may take to power off after its program has ended.
	PowerOff = Limit(10 * time.Second)
	// Unplug is how long a guest may take to release a device.
	Unplug = Limit(2 * time.Minute)
)

// Limits of programs in guests.
const (
	// ResultsPort is how long the virtio port for a guest's results may take to appear and to be connected.
	ResultsPort = Limit(3 * time.Second)
	// LastOutput is how long a program's output may stay open after the program has ended, as when its children hold it.
	LastOutput = Limit(time.Second)
	// SessionOutput is the silence after which an ended program's output counts as complete.
	SessionOutput = Limit(500 * time.Millisecond)
	// AgentStop is how long an ending agent waits for its operations.
	AgentStop = Limit(5 * time.Second)
	// AgentCancel is how long it may take to send a request's cancellation to the agent, or to another server of package
	// jsonlines.
	AgentCancel = Limit(time.Second)
	// Disk is how long a disk may take to appear, and how long an NVMe initiator may take to connect until the namespaces
	// appear.
	Disk = Limit(30 * time.Second)
	// Interface is how long a guest's network interfaces may take to appear.
	Interface = Limit(20 * time.Second)
	// ImageInterface is how long network interfaces may take to appear in a guest of an image, which may have none.
	ImageInterface = Limit(5 * time.Second)
	// InterfaceReady is how long an interface that is up may take until it can be used.
	InterfaceReady = Limit(15 * time.Second)
	// Lease is how long a DHCP client waits for an answer after it has sent a message for the first time. After each
	// later time it waits twice as long as before.
	Lease = Limit(160 * time.Millisecond)
	// Terminal is how long a terminal may take to report its size.
	Terminal = Limit(500 * time.Millisecond)
	// Initiator is how long package guestnvme waits until the kernel's NVMe initiator has ended a failed connection.
	Initiator = Limit(3 * time.Second)
	// Interpreter is how long an interpreter may take to print the paths of its program and library.
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
	// GVECommand is how long it may take to register or unregister memory by in-band commands at a NIC of the kernel's
	// driver gve.
	GVECommand = Limit(10 * time.Second)
	// Unbind is how long a caller that closes a binding, or a device with bindings, waits until their memory is unused.
	Unbind = Limit(10 * time.Second)
	// Flush is the interval at which a device of devmem/kernel sends waiting packets while memory of a closed binding is
	// in use, and the time after which closing the device drops these packets.
	Flush = Limit(500 * time.Millisecond)
	// DeadProcess is how long to try to reserve huge pages, which a killed process may still have.
	DeadProcess = Limit(20 * time.Second)
	// Engine is the limit of a GPU engine's job, unless the job's transfer may make no progress for longer (Stall).
	Engine = Limit(30 * time.Second)
)

// Limits of NICs.
const (
	// Patience is how long a frame waits by default for a receiver without buffers, and how long the gateway waits for
	// room for a datagram or an answer.
	Patience = Limit(500 * time.Millisecond)
	// FirstPenalty is how long frames to a receiver do not wait after one has waited for Patience, unless the receiver
	// has had buffers since. If that happens again before the receiver has had buffers, the time is twice as long as
	// before, up to LastPenalty.
	FirstPenalty = Limit(2 * time.Second)
	LastPenalty  = Limit(32 * time.Second)
	// StuckWrite is how long a write to a frontend's eventfd may block before a NIC's monitor frees the writer.
	StuckWrite = Limit(500 * time.Millisecond)
	// Page is how long a GPU's driver may take for a page that RDMA requests.
	Page = Limit(4 * time.Second)
	// Frontend is how long a vhost-user frontend of package vhostuser waits for an answer by default.
	Frontend = Limit(30 * time.Second)
	// QEMUReply is how long QEMU waits for an answer of a vfio-user server.
	QEMUReply = Limit(5 * time.Second)
	// Drain is how long each wait of a vfio-user server that ends a connection may take, if the client reads no answers.
	Drain = Limit(time.Second)
	// Connected is how long a new connection to a port of vnic serve may be silent.
	Connected = Limit(10 * time.Second)
	// Takeover is how long a new connection to a port of vnic serve waits for the end of the old one.
	Takeover = Limit(time.Second)
	// Tokens is how long guests may take to report the holders of tokens.
	Tokens = Limit(250 * time.Millisecond)
	// Counted is how long a NIC's workers may take to count frames that they have delivered, and at least how long a
	// capture's interrupted write may take to return.
	Counted = Limit(20 * time.Second)
)

// Limits of programs on this machine.
const (
	// Broker is how long the process outside of the sandbox may take for a request that is not slow (Dial), and to end.
	Broker = Limit(5 * time.Second)
	// LocalServer is how long a local server may take to answer. LocalClient is how long a client of a local server may
	// take to send a request, and at least how long it may take to read the answer.
	LocalServer = Limit(5 * time.Second)
	LocalClient = Limit(5 * time.Second)
	// PageEnd is how long the server of the page with counters waits for its clients when it ends.
	PageEnd = Limit(500 * time.Millisecond)
	// Directory is how long another process may hold the lock of a socket's directory.
	Directory = Limit(2 * time.Second)
	// Dial is how long either end of a connection between a guest and the host's network may take to accept it, and how
	// long the process outside of the sandbox may take to open a socket. Resolver is how long a resolver may take to
	// answer.
	Dial     = Limit(10 * time.Second)
	Resolver = Limit(2 * time.Second)
	// Uplink is how long the other end of an uplink may take to accept a connection.
	Uplink = Limit(5 * time.Second)
	// CaptureEnd is how long a capture that ends may write no packet, as to a pipe that nobody reads.
	CaptureEnd = Limit(2 * time.Second)
)

// Limits of peers.
const (
	// Stall is how long a transfer may make no progress by default.
	Stall = Limit(time.Minute)
	// ProgramStall is how long the connections of a program in a guest may make no progress by default.
	ProgramStall = Limit(30 * time.Second)
	// Peer is how long the peer of a program in a guest may take to start by default, and how long an HTTP connection may
	// be idle with httpserver.Options.Long.
	Peer = Limit(time.Minute)
	// CloseWait is how long the peer of a connection may take to close its end too, and a storage server to end.
	CloseWait = Limit(5 * time.Second)
	// Linger is how long data that a closed connection of devmem/kernel has sent may stay unacknowledged.
	Linger = Limit(2 * time.Minute)
	// Silence is how long a neighbour, target or server may send nothing by default.
	Silence = Limit(5 * time.Second)
	// ServerBack is how long a server of objects may be unavailable by default.
	ServerBack = Limit(30 * time.Second)
	// LastWords is at most how long to read from a peer after sending has failed, how long the peer of an exchange may
	// take to read an error, and how long clients may take to read the last answers of vnic's web server.
	LastWords = Limit(time.Second)
	// Exchange is how long two ends of RDMA may take by default to exchange their values.
	Exchange = Limit(30 * time.Second)
	// LossFreeRTO is the least retransmission timeout if neither the link nor the receiver loses anything: a late
	// acknowledgment then means that a guest did not run.
	LossFreeRTO = Limit(3 * time.Second)
	// MinRTO and MinRTORACK are the least retransmission timeouts of vnic's stack otherwise, without and with RACK; the
	// gateway's is MinRTORACK.
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
	// Finish is how long the end of a transfer may take, or the end of all work when a transfer.Node is closed.
	Finish = Limit(20 * time.Second)
	// Ask is how long a guest may take for a request that needs little work, and to release devices after a failure.
	Ask = Limit(20 * time.Second)
	// AskState is how long a guest may take to report a connection's state.
	AskState = Limit(3 * time.Second)
	// Host is how long the vnic of another host may take by default to start and to connect.
	Host = Limit(5 * time.Minute)
	// OtherHost is how long another host's vnic may take to report an error, or to close its connection.
	OtherHost = Limit(3 * time.Second)
	// DialHost is how long one attempt to connect to another host may take.
	DialHost = Limit(5 * time.Second)
	// Connect is how long guests may take to connect queue pairs.
	Connect = Limit(time.Minute)
	// Disturbed is how long rounds of RDMA may take to fail after a fault was due.
	Disturbed = Limit(2 * time.Minute)
	// Failed is how long a fault may take to be injected after a round of RDMA has failed.
	Failed = Limit(time.Minute)
	// StorageServer is how long a storage server may take to listen.
	StorageServer = Limit(10 * time.Second)
	// Bench is how long a step of a measurement may take, or the measurement may make no progress.
	Bench = Limit(20 * time.Second)
)
