package qemu

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"time"

	"vnic.dev/vnic/guest-images/agent"
)

// Accel says how QEMU runs the guest's code.
type Accel string

// Accelerators.
const (
	AccelAuto Accel = "" // KVM where a probe boot shows that it works, else TCG
	AccelKVM  Accel = "kvm"
	AccelTCG  Accel = "tcg"
)

// GPU is GPU memory shown to the guest as the BAR of an ivshmem-plain device.
type GPU struct {
	File *os.File // stays the caller's
	Size uint64   // a power of two
}

// Netdev is a virtio-net-pci device on a vhost-user backend.
type Netdev struct {
	Conn        *os.File         // QEMU's end of a connected socket; Start closes it
	Path        string           // instead of Conn: socket QEMU connects to, again and again when the backend goes away
	Queues      int              // queue pairs; 0 = 1
	MAC         net.HardwareAddr // nil = QEMU's
	RXQueueSize int              // 0 = 1024
	TXQueueSize int              // 0 = 1024
	MTU         int              // host_mtu; 0 = none
}

// Config describes one machine.
type Config struct {
	Name   string // for logs and errors; "" = "guest"
	QEMU   Binary
	Kernel Kernel
	Initrd []io.Reader // concatenated; see guest-images
	Append string      // added to the kernel's command line

	RAM     *os.File // shared memfd of RAMSize; nil = Start makes one; stays the caller's when given
	RAMSize uint64   // 0 = 512 MiB
	CPUs    int      // 0 = 1
	Accel   Accel
	GPUs    []GPU
	Netdevs []Netdev
	Args    []string // more QEMU arguments, last

	Console   io.Writer     // also gets the guest's console; may be nil
	BootLimit time.Duration // until the guest's init reports; 0 = 60 s
	TimeLimit time.Duration // whole run; 0 = 10 min
	Log       *slog.Logger  // may be nil
}

// Machine is a running QEMU.
type Machine struct{}

// Start starts QEMU and returns once the guest's init has reported on the results channel.
func Start(ctx context.Context, c Config) (*Machine, error) {
	return nil, errors.New("qemu: Start: not written yet")
}

// Agent is the guest's agent on the results channel.
func (m *Machine) Agent() *agent.Client { return nil }

// PID is QEMU's process id.
func (m *Machine) PID() int { return 0 }

// RAM is guest RAM as a file.
func (m *Machine) RAM() *os.File { return nil }

// Console gives the last lines of the guest's console (up to 256 KiB).
func (m *Machine) Console() []byte { return nil }

// Done is closed when QEMU has ended.
func (m *Machine) Done() <-chan struct{} { return nil }

// Wait waits until QEMU has ended and says how: nil after an orderly power-off or Close.
func (m *Machine) Wait() error { return nil }

// Close ends QEMU and frees everything. It may be called more than once.
func (m *Machine) Close() error { return nil }
