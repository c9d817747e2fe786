// Package vhostuser implements the vhost-user protocol (QEMU docs/interop/vhost-user.rst) from both ends.
//
// A Backend serves one Device, of any type, on one connection after another: it decodes and checks
// the messages of a frontend such as QEMU, keeps the device's dma.Space equal to the memory that
// the frontend shares, translates ring addresses from the frontend's address space to
// guest-physical ones, and calls the device to start, change and stop queues. A Frontend is the
// other end, for a Go process.
//
// The Backend closes the descriptors that came with a message after it has handled the message,
// unless the handler keeps them. The Backend keeps a ring's eventfds (kick, call, err), and
// passes duplicates to the device, which owns the duplicates. The Backend closes a region's
// descriptor at once, as the region's mapping keeps the file open.
//
// A frontend is not trusted. The Backend checks each message's size and number of descriptors before
// its content. A breach of the protocol ends the connection with ErrBadMessage or ErrUnsupported. A
// valid request that cannot be fulfilled is refused by REPLY_ACK if the frontend asked for an
// acknowledgement (GET_CONFIG: by an empty reply); else it is logged, or ends the connection if both
// ends would disagree from then on (features, memory). When a connection ends, the device is stopped
// and the memory unmapped, and the next connection finds the Backend in its initial state.
//
// A region consists of whole pages of 4 KiB, and there are at most MaxMemSlots regions, so a range
// of n bytes lies in at most n/4096 + 2 regions. A message about regions looks up each ring's three
// parts in all regions, twice: at most 2 x 3 x rings x MaxMemSlots comparisons, besides stopping
// and starting the rings that move.
//
// Memory that the frontend has mapped privately is accepted but not used (dma.ErrNotShared). The
// Backend logs each such file, with the first region of it, in at most 16 lines a connection.
//
// Not implemented: migration (dirty logs, device state, postcopy), IOTLB, packed rings, inflight
// tracking, in-band notifications, and requests from the backend (their channel is accepted and
// stays unused). When QEMU splits a region by REM_MEM_REG and ADD_MEM_REG, its addresses are
// unmapped in between: the Backend pauses rings in this region meanwhile, and addresses of buffers
// in it do not translate. Linux on little-endian machines only.
//
// The package is API (README, Stability).
package vhostuser
