// Package vhostuser implements the vhost-user protocol (QEMU docs/interop/vhost-user.rst) from both ends.
//
// A Backend serves one Device, of a type that the package knows nothing of, on one connection after
// another: it decodes and checks what a frontend such as QEMU sends, keeps the device's dma.Space
// equal to the memory that the frontend shares, translates ring addresses from the frontend's into
// guest-physical ones, and tells the device which queues to start, change and stop. A Frontend is
// the other end, for a Go process.
//
// Descriptors that come with a message are closed with it unless a handler takes them; a ring's
// kick, call and err stay the session's, and the device gets duplicates, which it owns. A region's
// is closed at once, as its mapping keeps the file.
//
// A frontend is not trusted. Each message's size and number of descriptors are checked before it is
// looked at. What breaks the protocol ends the connection with ErrBadMessage or ErrUnsupported;
// what cannot be done is refused by REPLY_ACK. Either way the device is left stopped, the memory
// unmapped, and the next connection finds the Backend as the first did.
//
// A region is whole pages of 4 KiB, and there are at most MaxMemSlots, so a range of n bytes lies
// in at most n/4096 + 2 regions. A message about regions looks for each ring's three parts among them
// all, so it costs at most 3 x rings x MaxMemSlots comparisons, twice, beside the rings that move.
//
// Memory that the frontend has mapped privately is taken and not used (dma.ErrNotShared). That makes a line of log, and
// 16 lines a connection at the most.
//
// Not served: migration (dirty logs, device state, postcopy), IOTLB, packed rings, inflight tracking, in-band
// notifications, and requests of the backend's own (the channel is accepted and stays unused). Between REM_MEM_REG and
// ADD_MEM_REG of a region that QEMU splits, its addresses are unmapped: rings there are paused, buffers there do not
// translate. Linux on little-endian machines only.
//
// The package is API (README, Stability).
package vhostuser
