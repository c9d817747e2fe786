// Package guestnvme makes a guest an NVMe/TCP target or an initiator with its kernel's drivers, nvmet-tcp and
// nvme-tcp (NVMe TCP Transport Specification 1.0c). It has both ends: Ops registers the guest's operations
// with package agent, and the host calls them by the other functions.
//
// A target (Serve, Stop) exports block devices of its guest, without the page cache. nvmet refuses a
// read-only disk (EACCES), because it opens block devices for writing.
//
// An initiator (Connect, Disconnect) tests a target: Digest and Compare read ranges of its block devices, Write
// writes a pattern that the host can generate too (gpumem.FillAt).
//
// A system call that waits for a peer cannot be interrupted: an operation whose context ends returns, and its
// system call goes on until it succeeds or the kernel gives up.
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

// TargetModules are the kernel modules that a target on virtio disks needs, unless they are built in.
var TargetModules = []string{"virtio_blk", "configfs", "nvmet", "nvmet_tcp"}

// InitiatorModules are the kernel modules that an initiator needs, unless they are built in.
var InitiatorModules = []string{"nvme_fabrics", "nvme_tcp"}

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
	Addrs []netip.AddrPort `json:"addrs"` // 1 to 16: IPv4, or IPv6 without a zone; no port 0
	// Disks are the namespaces' block devices, from namespace 1 on, 1 to 64: serial numbers, or paths "/dev/..."
	Disks []string `json:"disks"`
}

// Port is the port of NVMe/TCP's I/O controllers (IANA's "nvme").
const Port = 4420

// Serve makes a guest serve a target, and returns when its addresses listen. It succeeds if the guest already
// serves an equal target, and fails if it serves a different one. If ctx ends first, the guest may serve the
// target: Stop ends it. The error is EINVAL for an invalid target, and an *agent.RemoteError if the guest failed.
func Serve(ctx context.Context, c *agent.Client, t Target) error {
	if err := t.check(); err != nil {
		return err
	}
	return opServe.Do(ctx, c, t)
}

// Stop ends the guest's target that Serve has started; without one it does nothing.
func Stop(ctx context.Context, c *agent.Client) error { return opStop.Do(ctx, c, agent.None{}) }

// Connection has an initiator's options for its connection to a subsystem.
type Connection struct {
	Addr    netip.AddrPort `json:"addr"`
	NQN     string         `json:"nqn"`
	HostNQN string         `json:"hostnqn"`          // name of the initiator; "" = DefaultHostNQN
	NSIDs   []uint32       `json:"nsids,omitempty"`  // namespaces for which Connect waits; none: 1
	Queues  int            `json:"queues,omitempty"` // most I/O queues; 0: one for each CPU
	// LossSeconds is for how long the kernel tries to reconnect to a lost target; 0: 30
	LossSeconds int `json:"loss_seconds,omitempty"`
}

// DefaultHostNQN is the name of an initiator whose Connection has no HostNQN.
const DefaultHostNQN = "nqn.2014-08.org.nvmexpress:uuid:766e6963-0000-4000-8000-000000000001"

// Controller is the result of Connect.
type Controller struct {
	Name       string      `json:"name"`       // "nvme0"
	Namespaces []Namespace `json:"namespaces"` // in the order of Connection.NSIDs
}

// Namespace is a block device of an initiator.
type Namespace struct {
	NSID      uint32 `json:"nsid"`
	Device    string `json:"device"`     // "nvme0n1"
	Size      uint64 `json:"size"`       // in bytes
	BlockSize uint32 `json:"block_size"` // in bytes
}

// Connect makes a guest's kernel connect to a subsystem, and waits for the namespaces NSIDs. If this takes longer than
// limits.Disk times limits.Slow, the guest deletes the controller, and Connect fails.
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

// Disconnect deletes a controller that Connect has made, by its name; no error if it does not exist.
func Disconnect(ctx context.Context, c *agent.Client, name string) error {
	return opDisconnect.Do(ctx, c, controller{name})
}

type controller struct {
	Name string `json:"name"`
}

// Range is a part of a block device of the guest.
type Range struct {
	Device string `json:"device"`
	Off    uint64 `json:"off"` // in bytes, a multiple of the block size, like Len
	Len    uint64 `json:"len"`
	// Chunk is the most bytes per system call, a multiple of the block size, 16 MiB at most; 0: 1 MiB.
	Chunk int `json:"chunk,omitempty"`
	// Buffered uses the guest's page cache, instead of O_DIRECT.
	Buffered bool `json:"buffered,omitempty"`
}

type transfer struct {
	Range
	Seed *uint64 `json:"seed,omitempty"` // of the pattern; nil: opRead returns the digest, opWrite fails
}

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

// Compare reads a range and compares it with the pattern of seed, which begins at the device's first byte
// (gpumem.FillAt). It returns the number of bytes before the first one that differs; r.Len: none differs.
func Compare(ctx context.Context, c *agent.Client, r Range, seed uint64) (same uint64, err error) {
	got, err := opRead.Call(ctx, c, transfer{r, &seed})
	if err == nil && got.Match > r.Len {
		err = fmt.Errorf("nvme.read: %d bytes the same, of %d", got.Match, r.Len)
	}
	return got.Match, err
}

// Write fills a range with the pattern of seed, which begins at the device's first byte (gpumem.FillAt), and
// flushes the device (fsync(2)).
func Write(ctx context.Context, c *agent.Client, r Range, seed uint64) error {
	return opWrite.Do(ctx, c, transfer{r, &seed})
}

// maxNQN is the maximum length of an NQN, in bytes (NVM Express Base Specification 2.0, 4.5).
const maxNQN = 223

// checkNQN returns an error for an NQN without the prefix "nqn.", longer than maxNQN, with characters other than
// printable ASCII, or with a space, a slash or a comma: it becomes a directory's name and part of a comma-separated
// list.
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
	if len(c.NSIDs) == 0 { // omitempty leaves out an empty list, as it does nil
		return []uint32{1}
	}
	return c.NSIDs
}
