package broker

import "vnic.dev/vnic/dma"

// This table lists all requests of a process to its broker. Only the process that started the broker can send them:
// it has the other end of the broker's socket. It sends opSeal when it is confined, and maps no guest's memory
// before. The comment of a row says what the broker does at the request, and what the answer has.
//
// A row has the types of the request's body and of the answer's, and states
//   - when the process may ask: always, or only before opSeal (else EPERM);
//   - whether a descriptor comes with the request: none, perhaps, or one (else EBADF);
//   - whether the broker answers at once, before it reads the next request, or is slow: then a goroutine answers,
//     within limits.Dial; there are at most maxSlow of them (else EAGAIN);
//   - the handler, which runs after the body has passed its own checks (else EINVAL or ENAMETOOLONG): bodies.go.
var (
	// Opens a TCP connection to an address that the gateway's policy permits; the answer has its socket.
	opDial = row[address, none]("dial", always, fdNone, slow, socket((*server).dial))
	// Opens a socket for a guest's flow of UDP or of ICMP echoes, to an address that the gateway's policy permits; the
	// answer has the socket.
	opFlow = row[flow, none]("flow", always, fdNone, slow, socket((*server).openFlow))
	// Opens a UDP socket at the address of a forward (Config.Forwards), connected to an address that has sent a datagram
	// to the forward; the answer has the socket.
	opAnswer = row[answer, none]("answer", always, fdNone, slow, socket((*server).openAnswer))
	// Opens a TCP connection or a UDP socket to a resolver of the host that the gateway's policy permits; the answer has
	// the socket.
	opResolver = row[resolver, none]("resolver", always, fdNone, slow, socket((*server).dialResolver))
	// Connects to a Unix socket of Config.Connect; the answer has the connection's socket.
	opConnect = row[socketIndex, none]("connect", always, fdNone, slow, socket((*server).connect))
	// Cancels a slow request, by its id.
	opCancel = row[uint32, none]("cancel", always, fdNone, atOnce, plain((*server).cancel))
	// Opens the host's socket of a UDP forward (Config.Forwards). The answer has its port, and another socket, by which
	// the process receives the forward's datagrams and sends answers, to their senders alone.
	opListen = row[address, uint16]("listen", beforeSeal, fdNone, atOnce, (*server).listen)

	// The answer has the addresses of the host's resolvers.
	opResolvers = row[none, []address]("resolvers", always, fdNone, atOnce, plain((*server).resolvers))
	// The answer has the host's own addresses.
	opAddrs = row[none, []address]("addresses", always, fdNone, atOnce, plain((*server).addrs))
	// The answer says if a process has mapped memory of an earlier vnic (memfds whose names begin with Config.Memory)
	// and has not mapped the memfd that the body names.
	opOldMemory = row[mappedFile, bool]("old memory", always, fdNone, atOnce, plain((*server).oldMemory))
	// The answer says how a process has mapped a file: shared, privately, or unknown.
	opSharing = row[mappedFile, dma.Sharing]("sharing", always, fdNone, atOnce, plain((*server).sharing))
	// The answer has the number of the process's refused system calls that the broker has counted.
	opRefused = row[none, uint64]("refused", always, fdNone, atOnce, plain((*server).refusedCalls))

	// Names a file for opRemove.
	opKeep = row[keptFile, fileIndex]("keep", beforeSeal, fdNone, atOnce, plain((*server).keep))
	// Names a file for opRename and opRemove, and the name that opRename gives the file. The descriptor: the file, if
	// it has no name yet.
	opDraft = row[draftFile, fileIndex]("draft", beforeSeal, fdMay, atOnce, (*server).draft)
	// Removes a file of opKeep or opDraft, if its name still leads to the same file (kept.same).
	opRemove = row[fileIndex, none]("remove", always, fdNone, atOnce, plain((*server).remove))
	// Gives a file of opDraft its name, if it has no name yet or its temporary name still leads to the same file.
	opRename = row[fileIndex, none]("rename", always, fdNone, atOnce, plain((*server).rename))

	// Names a process, a QEMU, for opSignal. The descriptor: its pidfd.
	opOwn = row[none, processIndex]("own", beforeSeal, fdMust, atOnce, (*server).ownProcess)
	// Sends SIGTERM or SIGKILL to a process of opOwn.
	opSignal = row[processSignal, none]("signal", always, fdNone, atOnce, plain((*server).signal))
	// Starts to relay the commands of Config.Monitor to a QEMU's monitor. The descriptor: the monitor's socket. The answer
	// has the socket to which the process then writes commands.
	opMonitor = row[none, none]("monitor", beforeSeal, fdMust, atOnce, (*server).monitor)

	// Names a GPU's memory for opGive. The descriptor: its memfd.
	opMemory = row[none, memoryIndex]("memory", beforeSeal, fdMust, atOnce, (*server).memory)
	// Starts to send the descriptor of a GPU's memory to the members of a group that connect to a socket. The descriptor:
	// the listening socket.
	opGive = row[grant, none]("give", beforeSeal, fdMust, atOnce, (*server).give)

	// Makes the broker refuse beforeSeal requests from then on. The descriptor: the listener of seccomp that reports
	// refused system calls.
	opSeal = row[none, none]("seal", beforeSeal, fdMay, atOnce, (*server).seal)
)
