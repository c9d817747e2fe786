package broker

import "vnic.dev/vnic/dma"

// This table lists the requests of a process to its broker, over a socket whose other end only the process
// that started the broker has. A comment says what the broker does, or what its answer has.
//
// A row has the types of the request's body and of the answer's, and states
//   - when the process may ask: always, or only before opSeal (else EPERM);
//   - whether a descriptor comes with the request: none, at most one, or one (else EBADF);
//   - whether the broker answers at once, before it reads the next request, or is slow: then a goroutine answers, with
//     the timeout limits.Dial; there are at most maxSlow of them (else EAGAIN);
//   - the handler, which runs after the body has been decoded and has passed its method check in bodies.go, if it has
//     one (else EINVAL or ENAMETOOLONG).
var (
	// If NAT is on: a TCP connection to an address that the gateway's policy permits.
	opDial = row[address, none]("dial", always, fdNone, slow, socket((*server).dial))
	// If NAT is on: a socket for a guest's flow of UDP or of ICMP echoes that the policy permits, or a UDP socket
	// without a port to send to, which only receives (gateway.Dialer).
	opFlow = row[flow, none]("flow", always, fdNone, slow, socket((*server).openFlow))
	// A UDP socket at the address of a forward, with another port, connected to a sender that the forward's relay
	// remembers.
	opAnswer = row[answer, none]("answer", always, fdNone, slow, socket((*server).openAnswer))
	// If NAT is on: a TCP connection or a UDP socket to a resolver of the host that the policy permits.
	opResolver = row[resolver, none]("resolver", always, fdNone, slow, socket((*server).dialResolver))
	// A connection to a Unix socket of Config.Connect.
	opConnect = row[socketIndex, none]("connect", always, fdNone, slow, socket((*server).connect))
	// Cancels a slow request, by its id.
	opCancel = row[uint32, none]("cancel", always, fdNone, atOnce, plain((*server).cancel))
	// Opens the host's socket of a UDP forward in Config.Forwards. The answer has the socket's port, and with it comes
	// a socket to the relay of its datagrams.
	opListen = row[address, uint16]("listen", beforeSeal, fdNone, atOnce, (*server).listen)

	opResolvers = row[none, []address]("resolvers", always, fdNone, atOnce, plain((*server).resolvers))
	opAddrs     = row[none, []address]("addresses", always, fdNone, atOnce, plain((*server).addrs))
	// Whether a process has mapped memfds whose names begin with Config.Memory, but not the one in the body.
	opOldMemory = row[mappedFile, bool]("old memory", always, fdNone, atOnce, plain((*server).oldMemory))
	// Whether a process has mapped a file shared (dma.SharingOf).
	opSharing = row[mappedFile, dma.Sharing]("sharing", always, fdNone, atOnce, plain((*server).sharing))
	// The number of refused system calls; in mode Log, of calls that mode On would refuse.
	opRefused = row[none, uint64]("refused", always, fdNone, atOnce, plain((*server).refusedCalls))

	// Names a file for opRemove.
	opKeep = row[keptFile, fileIndex]("keep", beforeSeal, fdNone, atOnce, plain((*server).keep))
	// Names a file for opRename and opRemove. The descriptor: the file, if it has no name yet.
	opDraft = row[draftFile, fileIndex]("draft", beforeSeal, fdMay, atOnce, (*server).draft)
	// Removes a file of opKeep, if its name still leads to the same file, unchanged, or a draft of opDraft, if its
	// temporary name still leads to the same file. For opKeep also removes the directory, if asked and if it is empty.
	opRemove = row[fileIndex, none]("remove", always, fdNone, atOnce, plain((*server).remove))
	// Gives a draft of opDraft its name; ESTALE: its temporary name leads to another file.
	opRename = row[fileIndex, none]("rename", always, fdNone, atOnce, plain((*server).rename))

	// Names a process for opSignal. The descriptor: its pidfd.
	opOwn = row[none, processIndex]("own", beforeSeal, fdMust, atOnce, (*server).ownProcess)
	// Sends SIGTERM or SIGKILL to a process of opOwn.
	opSignal = row[processSignal, none]("signal", always, fdNone, atOnce, plain((*server).signal))
	// Relays the commands of Config.Monitor to a QEMU's monitor, and all bytes back. The descriptor: the monitor's
	// socket. With the answer comes the socket for commands.
	opMonitor = row[none, none]("monitor", beforeSeal, fdMust, atOnce, (*server).monitor)

	// Names a GPU's memory for opGive. The descriptor: its memfd.
	opMemory = row[none, memoryIndex]("memory", beforeSeal, fdMust, atOnce, (*server).memory)
	// From then on sends a descriptor of a GPU's memory to each process that connects to a socket and that access.Rule
	// admits. The descriptor: the listening socket.
	opGive = row[grant, none]("give", beforeSeal, fdMust, atOnce, (*server).give)

	// Makes the broker refuse beforeSeal requests from then on. The descriptor: the listener of seccomp, if there is
	// one.
	opSeal = row[none, none]("seal", beforeSeal, fdMay, atOnce, (*server).seal)
)
