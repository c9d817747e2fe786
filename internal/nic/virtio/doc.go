// Package virtio is vnic's virtio-net: the device end of a NIC with header split, over vhost-user (virtio 1.3,
// 5.1).
//
// A Device is a vhostuser.Device; vring 2i is receive queue i, vring 2i+1 transmit queue i (5.1.2). QEMU handles
// the control queue (MAC, receive mode, number of queue pairs) itself; other requests of drivers come on the
// port's control channel.
//
// A paused guest (SET_STATUS 0, if RESET_DEVICE was negotiated) keeps the state that commands have set up: its
// queues stop, and RDMA is suspended until a ring starts again. RESET_DEVICE clears that state, and so does a new
// driver, which the device recognizes by where the rings start (Device.noteStart).
//
// Each started transmit queue has one worker, unless nic.Pollers serve it; senders use receive queues under a
// lock. One monitor for each device (nic.Monitor) waits for the kicks of receive queues, and logs why a queue stopped,
// at most once a second for each queue.
//
// The cost of a driver's ring for others is bounded for each chain (package virtq) and for each frame. A frame
// takes as many chains as it needs, until these have more than 4096 segments and empty buffers, where a chain counts
// for at least 4: at most 1025 chains (BenchmarkRefused and BenchmarkManyChains measure the cost). If the chains are
// not enough, the device walks them once: it refuses a frame that needs more room than they have without another
// walk, until there may be other chains. If the chains that a frame may take are too small for it, the device
// returns them unused (with MRG_RXBUF; without it the single chain stays, and so do the chains of a descriptor
// table without room for another one, and chains that are too small only for a packet that the port has merged).
//
// The device returns a chain whose memory it cannot reach (virtq.Chain.Fault): a frame to send is lost; a frame
// to receive is lost, and the device returns all chains that it took for the frame unused.
//
// Header split (layout after virtio-spec issue 144): on a split queue, a chain is one header buffer, for
// virtio_net_hdr and at least 256 bytes, and payload buffers.
package virtio
