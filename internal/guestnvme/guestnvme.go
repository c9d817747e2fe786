// Package guestnvme makes a guest an NVMe/TCP target or an initiator with its kernel's drivers,
// nvmet-tcp and nvme-tcp (NVMe TCP Transport Specification 1.0c). It has both ends: Ops registers
// the guest's operations with package agent, and the host calls them by the other functions.
//
// A target (Serve, Stop) exports block devices of its guest, which Target.Disks names by their
// serial numbers: QEMU's disks, whose bytes are in files of the host (qemu.Disk). The kernel's
// target bypasses the guest's page cache: an initiator reads the bytes that the host has written to
// the disk's file, and the host can read an initiator's write in the file as soon as the write
// command is complete. An initiator (Connect, Disconnect) tests a target, the guest kernel's or
// another: Digest and Compare read ranges, Write writes a pattern that the host can generate too.
//
// Package guestnet configures the guest's network: the target listens at an address of an interface
// of the kernel. The image needs kernel modules, which the guest's init loads: TargetModules,
// InitiatorModules, and the interface's driver. Debian's cloud kernel 7.2.12 has virtio_pci and
// nvme-core, which target and initiator need, built in; loop, brd and null_blk are not needed.
// Digests of headers and data, TLS and authentication are off.
//
// Measured with this kernel (TCG, two guests of one CPU each on a host of two, disks in memfds):
// the modules are 0.9 MB of a target's image and 0.2 MB of an initiator's; started one after the
// other, both guests have booted after 10 to 14 s. Serve takes 0.1 s, Connect 0.1 to 0.4 s. Digest
// and Compare read 15 to 20 MB/s in chunks of 1 MiB or more, 7 MB/s in chunks of 128 KiB; on the
// target's own disk 40 to 50 MB/s. A target with a gVNIC, under the kernel's gve, is as fast. nvmet
// refuses a read-only disk (EACCES), because it opens block devices for writing.
//
// A guest serves one target at a time, with 64 namespaces and 16 addresses at most. A system call
// that waits for a peer cannot be interrupted: an operation whose context ends returns, and its
// system call ends when the kernel gives up (a connection after some minutes, a command after 30
// seconds plus Connection.LossSeconds). The operation then removes a controller that the call has
// still made. A buffer has Range.Chunk bytes, 16 MiB at most.
package guestnvme

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/netip"
	"strings"
	"syscall"

	"vnic.dev/vnic/internal/agent"
)

// TargetModules are the kernel modules of a target that exports QEMU's disks.
var TargetModules = []string{"virtio_blk", "configfs", "nvmet", "nvmet_tcp"}

// InitiatorModules are the kernel modules of an initiator.
var InitiatorModules = []string{"nvme_fabrics", "nvme_tcp"}

// The operations.
var (
	opServe      = agent.NewOperation[Target, agent.None]("nvmet.serve")
	opStop       = agent.NewOperation[agent.None, agent.None]("nvmet.stop")
	opConnect    = agent.NewOperation[Connection, Controller]("nvme.connect")
	opDisconnect = agent.NewOperation[controller, agent.None]("nvme.disconnect")
	opRead       = agent.NewOperation[transfer, readResult]("nvme.read")
	opWrite      = agent.NewOperation[transfer, agent.None]("nvme.write")
)

// Target is an NVMe subsystem and the addresses at which it listens.
type Target struct {
	NQN   string           `json:"nqn"`   // NVM Express Base Specification 2.0, 4.5: "nqn.", at most 223 bytes
	Addrs []netip.AddrPort `json:"addrs"` // addresses of the guest's interfaces; IPv4 or IPv6 without a zone
	// Disks are the block devices of the namespaces, which are numbered from 1: serial numbers, or
	// paths "/dev/..."
	Disks []string `json:"disks"`
}

// Port is the port of NVMe/TCP's I/O controllers (IANA's "nvme").
const Port = 4420

// Serve makes a guest serve a target, and returns when all its addresses listen. Serve succeeds if the guest
// already serves an equal target, and fails with EBUSY if the guest serves a different one. An error leaves
// unchanged what the guest serves, except after the end of ctx: then the guest may serve the target, and Stop
// ends it. The guest's errors are *agent.RemoteError, with the kernel's text: EADDRNOTAVAIL for an address
// that the guest does not have, EACCES for a read-only disk, ENODEV for a serial number that no disk has.
func Serve(ctx context.Context, c *agent.Client, t Target) error {
	if err := t.check(); err != nil {
		return err
	}
	return opServe.Do(ctx, c, t)
}

// Stop ends the target that Serve has started, and closes its connections. Without a target Stop
// does nothing and returns nil.
func Stop(ctx context.Context, c *agent.Client) error { return opStop.Do(ctx, c, agent.None{}) }

// Connection is an address and a subsystem to which an initiator connects, with options.
type Connection struct {
	Addr    netip.AddrPort `json:"addr"`
	NQN     string         `json:"nqn"`              // the name of the subsystem
	HostNQN string         `json:"hostnqn"`          // the name of the initiator; "" = DefaultHostNQN
	NSIDs   []uint32       `json:"nsids,omitempty"`  // the namespaces for which Connect waits; nil: 1
	Queues  int            `json:"queues,omitempty"` // I/O queues; 0: one for each CPU
	// LossSeconds is for how long the kernel tries to reconnect to a lost target before it fails the
	// commands; 0: 30
	LossSeconds int `json:"loss_seconds,omitempty"`
}

// DefaultHostNQN is the name of an initiator whose Connection has no HostNQN.
const DefaultHostNQN = "nqn.2014-08.org.nvmexpress:uuid:766e6963-0000-4000-8000-000000000001"

// Controller is the result of Connect.
type Controller struct {
	Name       string      `json:"name"`       // "nvme0"
	Namespaces []Namespace `json:"namespaces"` // in the order of Connection.NSIDs
}

// Namespace is a block device of an initiator. The number in the device's name may differ from
// NSID.
type Namespace struct {
	NSID      uint32 `json:"nsid"`
	Device    string `json:"device"`     // "nvme0n1"
	Size      uint64 `json:"size"`       // in bytes
	BlockSize uint32 `json:"block_size"` // in bytes
}

// Connect makes a guest's kernel connect to a subsystem, and waits for its namespaces, until ctx ends or 30
// seconds have passed. After an error the guest does not stay connected.
func Connect(ctx context.Context, c *agent.Client, conn Connection) (Controller, error) {
	if err := conn.check(); err != nil {
		return Controller{}, err
	}
	r, err := opConnect.Call(ctx, c, conn)
	if err == nil && len(r.Namespaces) != len(conn.nsids()) {
		err = fmt.Errorf("nvme.connect: the guest gave %d namespaces of %d", len(r.Namespaces), len(conn.nsids()))
	}
	return r, err
}

// Disconnect makes the guest's kernel delete a controller that Connect has made, by its name. It
// returns nil if the controller does not exist any more.
func Disconnect(ctx context.Context, c *agent.Client, name string) error {
	return opDisconnect.Do(ctx, c, controller{name})
}

type controller struct {
	Name string `json:"name"`
}

// Range is a part of a block device of the guest, such as a Namespace's Device.
type Range struct {
	Device string `json:"device"`
	Off    uint64 `json:"off"` // in bytes, a multiple of the block size, as Len is
	Len    uint64 `json:"len"`
	// Chunk is the number of bytes per system call, a multiple of the block size, 16 MiB at most; 0: 1
	// MiB. The kernel makes one NVMe command of each call, or several if the chunk is larger than its
	// limit (4 MiB for nvme-tcp).
	Chunk int `json:"chunk,omitempty"`
	// Buffered reads through the guest's page cache, which may have the blocks of an earlier read.
	// Without it each read goes to the target (O_DIRECT).
	Buffered bool `json:"buffered,omitempty"`
}

// transfer is the argument of opRead and opWrite.
type transfer struct {
	Range
	Seed *uint64 `json:"seed,omitempty"` // of the pattern; nil: opRead returns the digest
}

// readResult is the result of opRead.
type readResult struct {
	SHA256 []byte `json:"sha256,omitempty"`
	Match  uint64 `json:"match,omitempty"`
}

// Digest reads a range and returns its SHA-256.
func Digest(ctx context.Context, c *agent.Client, r Range) (sum [sha256.Size]byte, err error) {
	got, err := opRead.Call(ctx, c, transfer{Range: r})
	if err != nil {
		return sum, err
	}
	if len(got.SHA256) != len(sum) {
		return sum, fmt.Errorf("nvme.read: a digest of %d bytes", len(got.SHA256))
	}
	return [sha256.Size]byte(got.SHA256), nil
}

// Compare reads a range up to the first byte that differs from the pattern of seed, which begins at
// the device's first byte (gpumem.FillAt). It returns the number of equal bytes from the range's
// start: Range.Len if all are equal.
func Compare(ctx context.Context, c *agent.Client, r Range, seed uint64) (same uint64, err error) {
	got, err := opRead.Call(ctx, c, transfer{r, &seed})
	if err == nil && got.Match > r.Len {
		err = fmt.Errorf("nvme.read: %d bytes the same, of %d", got.Match, r.Len)
	}
	return got.Match, err
}

// Write writes the pattern of seed, which begins at the device's first byte (gpumem.FillAt), and
// makes the target flush it.
func Write(ctx context.Context, c *agent.Client, r Range, seed uint64) error {
	return opWrite.Do(ctx, c, transfer{r, &seed})
}

// maxNQN is the maximum length of a name (NVM Express Base Specification 2.0, 4.5).
const maxNQN = 223

// checkNQN returns an error for an invalid NQN. The kernel uses the name as the name of a
// directory, and as a value in a comma-separated list.
func checkNQN(nqn string) error {
	if !strings.HasPrefix(nqn, "nqn.") || len(nqn) > maxNQN || strings.ContainsFunc(nqn, func(r rune) bool {
		return r <= ' ' || r > '~' || r == '/' || r == ','
	}) {
		return fmt.Errorf("NQN %q: nqn. and at most %d characters, no space, slash or comma, are needed: %w", nqn,
			maxNQN, syscall.EINVAL)
	}
	return nil
}

func checkAddr(a netip.AddrPort) error {
	if !a.IsValid() || a.Port() == 0 || a.Addr().Zone() != "" {
		return fmt.Errorf("address %v: an address without a zone, and a port, are needed: %w", a, syscall.EINVAL)
	}
	return nil
}

// maxNamespaces and maxAddrs bound a target.
const (
	maxNamespaces = 64
	maxAddrs      = 16
)

func (t *Target) check() error {
	if err := checkNQN(t.NQN); err != nil {
		return err
	}
	if n := len(t.Disks); n == 0 || n > maxNamespaces {
		return fmt.Errorf("%d disks: 1 to %d are needed: %w", n, maxNamespaces, syscall.EINVAL)
	}
	if n := len(t.Addrs); n == 0 || n > maxAddrs {
		return fmt.Errorf("%d addresses: 1 to %d are needed: %w", n, maxAddrs, syscall.EINVAL)
	}
	for _, a := range t.Addrs {
		if err := checkAddr(a); err != nil {
			return err
		}
	}
	return nil
}

func (c *Connection) check() error {
	if err := checkNQN(c.NQN); err != nil {
		return err
	}
	if c.HostNQN != "" {
		if err := checkNQN(c.HostNQN); err != nil {
			return err
		}
	}
	if n := len(c.NSIDs); n > maxNamespaces {
		return fmt.Errorf("%d namespaces: at most %d: %w", n, maxNamespaces, syscall.EINVAL)
	}
	if c.Queues < 0 || c.LossSeconds < 0 {
		return fmt.Errorf("%d queues, %d seconds: %w", c.Queues, c.LossSeconds, syscall.EINVAL)
	}
	return checkAddr(c.Addr)
}

func (c *Connection) nsids() []uint32 {
	if c.NSIDs == nil {
		return []uint32{1}
	}
	return c.NSIDs
}
