// Package vhostuser implements the vhost-user protocol (QEMU docs/interop/vhost-user.rst) from both ends.
//
// A Backend serves one Device, on one connection after another, and keeps the device's dma.Space equal to the
// memory that the frontend, such as QEMU, shares. A Frontend is the other end, for a Go process.
//
// The Backend closes, or discards (dma.Space.Discard), descriptors that came with a message unless the message's
// handler keeps them. It keeps a ring's eventfds (kick, call, err), and passes duplicates to the device, which
// owns them.
//
// A frontend is not trusted. A breach of the protocol ends the connection with ErrBadMessage or ErrUnsupported,
// a file whose file system does not answer ends it with dma.ErrBlocked. Another request that cannot be fulfilled
// is refused by REPLY_ACK if the frontend asked for an acknowledgement (GET_CONFIG: by an empty reply); else it is
// logged, or ends the connection if both ends would disagree from then on (features, memory).
//
// A region consists of whole pages of 4 KiB, and there are at most MaxMemSlots regions, and at most MaxTableRegions in
// one SET_MEM_TABLE.
//
// Memory that the frontend has mapped privately, as far as the space finds it (dma.Space.SetPeer), is accepted but not
// used (dma.ErrNotShared).
//
// Not implemented: migration (dirty logs, device state, postcopy), IOTLB, packed rings, inflight tracking,
// in-band notifications, and requests from the backend. When QEMU splits a region by REM_MEM_REG and
// ADD_MEM_REG, its addresses are unmapped in between.
//
// The package is API (README, Stability).
package vhostuser
