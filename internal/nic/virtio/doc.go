// Package virtio is vnic's virtio-net: the device end of a NIC with header split, over vhost-user (virtio 1.3, 5.1).
//
// A Device is a vhostuser.Device; vring 2i is receive queue i, vring 2i+1 transmit queue i (5.1.2).
// Rings, feature bits and life cycle come from the frontend by way of package vhostuser. The
// control queue (MAC, receive mode, number of queue pairs) is QEMU's own and never seen here;
// everything else that a driver asks for comes through the port's control channel.
//
// A guest that is stopped (SET_STATUS 0, where RESET_DEVICE was negotiated) keeps all that commands set up: its
// queues stop, and RDMA rests until a ring starts again. RESET_DEVICE drops it, and so does a driver whose rings
// begin anew.
//
// Each started transmit queue has one worker, which does all the work of its frames up to the
// receiving queue's buffers. Receive queues have no goroutine: senders enter them under a lock. One
// monitor a device (nic.Monitor) sleeps on their kicks, which matter only to start a ring and to
// wake senders that wait for buffers, and logs why a queue stopped.
//
// What a driver's ring costs others is bounded by chain (package virtq) and by frame: a frame takes as
// many chains as it needs, but none more once these have 4096 segments and empty buffers, of which a
// chain counts for 4 at least: 1025 chains at the most, some 130 us of the sender's processor with the
// worst of them (BenchmarkRefused, BenchmarkManyChains). Chains that are not enough are walked over once:
// until the driver adds chains, some are returned, or memory changes, a frame that needs more room
// than they have is refused without looking at them. Chains that are too little although a frame may
// have no more of them are returned unused (MRG_RXBUF; without it the one chain stays). When split
// goes off chains are returned unread, 8 ns each. Lists of segments that were long are dropped when
// a queue sleeps, stops, or takes a frame that does not need them.
//
// A chain whose memory the device cannot reach (virtq.Chain.Fault) is given back: a frame to send is lost, and one that
// is received is lost with the chains that it was to lie in, which come back unused. That is logged once from a start
// of the ring to the next, and once a second at most.
//
// Why a queue stopped is logged once a second at most for each queue, with how often it was not.
//
// Header split (layout after virtio-spec issue 144): on a queue whose split is on, a chain is one header buffer, of
// at least 12 + 256 bytes, and payload buffers.
package virtio
