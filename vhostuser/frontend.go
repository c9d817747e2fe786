package vhostuser

import "net"

// Frontend is the side of vhost-user that owns the memory: what QEMU is, for a Go process.
type Frontend struct{ conn *net.UnixConn }

// MemRegion is one piece of the frontend's memory.
type MemRegion struct {
	FD                      int    // stays the caller's
	GPA, User, Size, Offset uint64 // guest-physical and user address; size; offset in FD
}

// VringSetup describes a ring to the backend. Kick and Call stay the caller's; -1 is none.
type VringSetup struct {
	Index             int
	Size              uint16
	Desc, Avail, Used uint64 // user addresses
	Base              uint16
	Kick, Call        int
}

// NewFrontend returns a Frontend that speaks on conn, which it owns.
func NewFrontend(conn *net.UnixConn) *Frontend { return &Frontend{conn: conn} }

// Negotiate agrees on features and protocol features, and takes ownership.
func (f *Frontend) Negotiate(features, protocol uint64) (gotF, gotP uint64, err error) {
	return 0, 0, errTODO
}

// Queues returns how many virtqueues the backend serves.
func (f *Frontend) Queues() int { return 0 }

// AddMemory shares [off, off+size) of fd at the guest-physical address gpa and the user address user.
func (f *Frontend) AddMemory(fd int, gpa, user, size, off uint64) error { return errTODO }

// RemoveMemory takes a region back.
func (f *Frontend) RemoveMemory(gpa, user, size uint64) error { return errTODO }

// SetMemTable replaces all regions.
func (f *Frontend) SetMemTable(regions []MemRegion) error { return errTODO }

// SetupVring describes a ring and gives its descriptors.
func (f *Frontend) SetupVring(v VringSetup) error { return errTODO }

// SetEnable enables or disables ring i.
func (f *Frontend) SetEnable(i int, on bool) error { return errTODO }

// GetVringBase stops ring i and returns where it stopped.
func (f *Frontend) GetVringBase(i int) (uint16, error) { return 0, errTODO }

// SetMTU tells the backend the host's MTU.
func (f *Frontend) SetMTU(mtu uint16) error { return errTODO }

// SetStatus sets the virtio device status.
func (f *Frontend) SetStatus(s uint8) error { return errTODO }

// GetStatus reads the virtio device status.
func (f *Frontend) GetStatus() (uint8, error) { return 0, errTODO }

// GetConfig reads the device's configuration space.
func (f *Frontend) GetConfig(off uint32, b []byte) error { return errTODO }

// Close hangs up.
func (f *Frontend) Close() error { return f.conn.Close() }
