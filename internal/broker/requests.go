package broker

import "vnic.dev/vnic/dma"

// This table lists all requests of a process to its broker. Only the process that started the broker can send them:
// it has the other end of the broker's socket. It sends opSeal when it is confined, and maps no guest's memory
// before.
//
// A row has the types of the request's body and of the answer's, and states
//   - when the process may ask: always, or only before opSeal (else EPERM);
//   - whether a descriptor comes with the request: none, perhaps, or one (else EBADF);
//   - whether the broker answers at once, before it reads the next request, or is slow: then a goroutine answers,
//     within limits.Dial; there are at most maxSlow of them (else EAGAIN);
//   - the handler, which runs after the body has passed its own checks (else EINVAL): bodies.go.
var (
	// A TCP connection to an address that the gateway's policy permits.
	opDial = row[address, none]("dial", always, fdNone, slow, socket((*server).dial))
	// A socket for a guest's flow of UDP or of echoes, to an address that the gateway's policy permits.
	opFlow = row[flow, none]("flow", always, fdNone, slow, socket((*server).openFlow))
	// A UDP socket at the address of a forward (Config.Forwards), to an address that has sent a datagram to it.
	opAnswer = row[answer, none]("answer", always, fdNone, slow, socket((*server).openAnswer))
	// A TCP connection or a UDP socket to a resolver of the host that the gateway's policy permits.
	opResolver = row[resolver, none]("resolver", always, fdNone, slow, socket((*server).dialResolver))
	// A connection to a Unix socket of Config.Connect.
	opConnect = row[socketIndex, none]("connect", always, fdNone, slow, socket((*server).connect))
	// Ends a slow request, by its id, for whose answer the process waits no longer.
	opCancel = row[uint32, none]("cancel", always, fdNone, atOnce, plain((*server).cancel))
	// A socket that brings the datagrams of a UDP forward (Config.Forwards), and takes answers to their senders alone.
	opListen = row[address, uint16]("listen", beforeSeal, fdNone, atOnce, (*server).listen)

	// The addresses of the host's resolvers.
	opResolvers = row[none, []address]("resolvers", always, fdNone, atOnce, plain((*server).resolvers))
	// The host's own addresses.
	opAddrs = row[none, []address]("addresses", always, fdNone, atOnce, plain((*server).addrs))
	// Whether a process has mapped memory of an earlier vnic: a memfd whose name begins with Config.Memory.
	opOldMemory = row[mappedFile, bool]("old memory", always, fdNone, atOnce, plain((*server).oldMemory))
	// How a process has mapped a file: shared, privately, or not.
	opSharing = row[mappedFile, dma.Sharing]("sharing", always, fdNone, atOnce, plain((*server).sharing))
	// How many system calls of the process were refused.
	opRefused = row[none, uint64]("refused", always, fdNone, atOnce, plain((*server).refusedCalls))

	// Names a file for opRemove.
	opKeep = row[keptFile, fileIndex]("keep", beforeSeal, fdNone, atOnce, plain((*server).keep))
	// Names a file for opRename and opRemove, and the name that opRename gives it. The descriptor: the file, if it has
	// no name yet.
	opDraft = row[draftFile, fileIndex]("draft", beforeSeal, fdMay, atOnce, (*server).draft)
	// Removes a file of opKeep or opDraft, if its name still leads to the same file.
	opRemove = row[fileIndex, none]("remove", always, fdNone, atOnce, plain((*server).remove))
	// Gives a file of opDraft its name, if its temporary name still leads to the same file.
	opRename = row[fileIndex, none]("rename", always, fdNone, atOnce, plain((*server).rename))

	// Names a process, a QEMU, for opSignal. The descriptor: its pidfd.
	opOwn = row[none, processIndex]("own", beforeSeal, fdMust, atOnce, (*server).ownProcess)
	// Sends SIGTERM or SIGKILL to a process of opOwn.
	opSignal = row[processSignal, none]("signal", always, fdNone, atOnce, plain((*server).signal))
	// A socket that passes on the commands of Config.Monitor to a QEMU's monitor. The descriptor: the monitor's socket.
	opMonitor = row[none, none]("monitor", beforeSeal, fdMust, atOnce, (*server).monitor)

	// Names a GPU's memory for opGive. The descriptor: its memfd.
	opMemory = row[none, memoryIndex]("memory", beforeSeal, fdMust, atOnce, (*server).memory)
	// Gives a GPU's memory to the members of a group that connect to a socket. The descriptor: the listening socket.
	opGive = row[grant, none]("give", beforeSeal, fdMust, atOnce, (*server).give)

	// After it the broker refuses beforeSeal requests. The descriptor: the listener of seccomp that reports refused
	// system calls.
	opSeal = row[none, none]("seal", beforeSeal, fdMay, atOnce, (*server).seal)
)
