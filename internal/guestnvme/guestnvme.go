// Package guestnvme makes a guest an NVMe/TCP target or an initiator with its kernel's drivers,
// nvmet-tcp and nvme-tcp (NVMe TCP Transport Specification 1.0c). It has both ends: Ops registers
// the operations with package agent, the other functions are the host's calls of them.
//
// A target (Serve, Stop) exports block devices of its guest, which it knows by their serial
// numbers: QEMU's disks, whose bytes are the host's (qemu.Disk). The kernel's target reads
// and writes a block device past the page cache of its guest, so what the host has written to the
// disk's file is what an initiator reads, and a write whose command is complete can be read in the
// file. An initiator (Connect, Disconnect) is the judge of a target that is another's, or ours:
// Digest and Compare read ranges, Write writes a pattern that the host can make too.
//
// The guest's network is package guestnet's: the target listens at an address that an interface of
// the kernel has. The image needs kernel modules, which the guest's init loads: TargetModules,
// InitiatorModules, and the interface's driver. Debian's cloud kernel 7.2.12 has nvme-core, which
// both need, built in, and so virtio_pci; loop, brd and null_blk are not needed. Digests of
// headers and data, TLS and authentication are off.
//
// What was measured there (TCG, two guests of one CPU each on a host of two, disks in memfds): the
// modules are 0.9 MB of a target's image and 0.2 MB of an initiator's; one after the other both
// guests have booted after 10 to 14 s. Serve takes 0.1 s, Connect 0.1 to 0.4 s. Digest and Compare
// read 15 to 20 MB/s in chunks of 1 MiB or more, 7 MB/s in chunks of 128 KiB; on the target's own
// disk 40 to 50 MB/s. A target with a gVNIC, under the kernel's gve, works likewise. nvmet refuses
// a disk that is read-only (EACCES): it opens block devices to write.
//
// One target is served at a time, with 64 namespaces and 16 addresses at most. A call of the kernel
// that waits for a peer cannot be interrupted: an operation whose context ends returns, and the
// call ends when the kernel gives up (a connection after some minutes, a command after 30 seconds
// and the time of Connection.LossSeconds). What it made is then taken away again. Buffers are of
// Range.Chunk bytes, 16 MiB at most.
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

// TargetModules are the kernel modules of a target whose disks are QEMU's.
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

// Target is a subsystem, and where it listens.
type Target struct {
	NQN   string           `json:"nqn"`   // NVM Express Base Specification 2.0, 4.5: "nqn.", at most 223 bytes
	Addrs []netip.AddrPort `json:"addrs"` // of the guest's interfaces; IPv4 or IPv6 without a zone
	// Disks are the namespaces, numbered from 1, by serial numbers, or by paths: "/dev/..."
	Disks []string `json:"disks"`
}

// Port is the port of NVMe/TCP's I/O controllers (IANA's "nvme").
const Port = 4420

// Serve has a guest serve a target, all of whose addresses listen when it returns. The target that
// is served already is no error; while another is it fails (EBUSY). If it fails nothing is changed;
// but if ctx has ended, the target may be served all the same: Stop ends it. Errors of the guest
// are *agent.RemoteError, in its kernel's words: EADDRNOTAVAIL for an address that the guest does
// not have, EACCES for a read-only disk, ENODEV for a serial number that no disk has.
func Serve(ctx context.Context, c *agent.Client, t Target) error {
	if err := t.check(); err != nil {
		return err
	}
	return opServe.Do(ctx, c, t)
}

// Stop ends what Serve has begun, and closes its connections. A guest that serves nothing has no
// error.
func Stop(ctx context.Context, c *agent.Client) error { return opStop.Do(ctx, c, agent.None{}) }

// Connection is what an initiator connects to.
type Connection struct {
	Addr    netip.AddrPort `json:"addr"`
	NQN     string         `json:"nqn"`              // the subsystem's
	HostNQN string         `json:"hostnqn"`          // the initiator's; "" = DefaultHostNQN
	NSIDs   []uint32       `json:"nsids,omitempty"`  // namespaces that are waited for; nil: 1
	Queues  int            `json:"queues,omitempty"` // for I/O; 0: one for each CPU
	// LossSeconds is how long the kernel tries to connect again to a target that is lost, before
	// commands fail; 0: 30
	LossSeconds int `json:"loss_seconds,omitempty"`
}

// DefaultHostNQN is the name of an initiator that is given none.
const DefaultHostNQN = "nqn.2014-08.org.nvmexpress:uuid:766e6963-0000-4000-8000-000000000001"

// Controller is what a connection has given.
type Controller struct {
	Name       string      `json:"name"`       // "nvme0"
	Namespaces []Namespace `json:"namespaces"` // in the order of Connection.NSIDs
}

// Namespace is a block device of an initiator. Its name does not tell its number.
type Namespace struct {
	NSID      uint32 `json:"nsid"`
	Device    string `json:"device"`     // "nvme0n1"
	Size      uint64 `json:"size"`       // in bytes
	BlockSize uint32 `json:"block_size"` // in bytes
}

// Connect has a guest's kernel connect to a subsystem, and waits for its namespaces: until ctx
// ends, 30 seconds at most. If it fails nothing stays connected.
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

// Disconnect has the kernel delete a controller of Connect's, by its name. One that is gone is no
// error.
func Disconnect(ctx context.Context, c *agent.Client, name string) error {
	return opDisconnect.Do(ctx, c, controller{name})
}

type controller struct {
	Name string `json:"name"`
}

// Range is a part of a block device of the guest: of a Namespace's Device, or of any.
type Range struct {
	Device string `json:"device"`
	Off    uint64 `json:"off"` // in bytes, whole blocks; so is Len
	Len    uint64 `json:"len"`
	// Chunk is how many bytes one system call takes, whole blocks, 16 MiB at most; 0: 1 MiB. A call
	// is one command, up to what the kernel makes of it: 4 MiB of nvme-tcp's.
	Chunk int `json:"chunk,omitempty"`
	// Buffered goes through the guest's page cache, which may hold what was read before. Without it
	// each read asks the target (O_DIRECT).
	Buffered bool `json:"buffered,omitempty"`
}

// transfer is the argument of opRead and opWrite.
type transfer struct {
	Range
	Seed *uint64 `json:"seed,omitempty"` // nil: the digest is wanted
}

// readResult is that of opRead.
type readResult struct {
	SHA256 []byte `json:"sha256,omitempty"`
	Match  uint64 `json:"match,omitempty"`
}

// Digest reads a range and gives its SHA-256.
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

// Compare reads a range until it differs from the pattern of seed, which begins with the device's
// first byte (gpumem.FillAt), and gives how many bytes are the same, from the range's start: Range.Len if
// all are.
func Compare(ctx context.Context, c *agent.Client, r Range, seed uint64) (same uint64, err error) {
	got, err := opRead.Call(ctx, c, transfer{r, &seed})
	if err == nil && got.Match > r.Len {
		err = fmt.Errorf("nvme.read: %d bytes the same, of %d", got.Match, r.Len)
	}
	return got.Match, err
}

// Write writes the pattern of seed, which begins with the device's first byte (gpumem.FillAt), and has the
// target flush it.
func Write(ctx context.Context, c *agent.Client, r Range, seed uint64) error {
	return opWrite.Do(ctx, c, transfer{r, &seed})
}

// maxNQN is the longest name (NVM Express Base Specification 2.0, 4.5).
const maxNQN = 223

// checkNQN says what is wrong with a name. It is a directory's, and a value in a list, for the
// kernel.
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
