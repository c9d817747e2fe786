package qemu

import (
	"bytes"
	"log/slog"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/vhostuser"
)

// idle is a network device that moves no frames.
type idle struct{ mtu uint16 }

// Features returns VERSION_1, MRG_RXBUF, MTU and MQ.
func (d *idle) Features() uint64                       { return 1<<32 | 1<<15 | 1<<3 | 1<<22 }
func (d *idle) ProtocolFeatures() uint64               { return uint64(vhostuser.SupportedProtocol) }
func (d *idle) SetFeatures(uint64) error               { return nil }
func (d *idle) MaxQueues() int                         { return 4 }
func (d *idle) QueueNum() uint64                       { return 2 }
func (d *idle) MTU(mtu uint16) error                   { d.mtu = mtu; return nil }
func (d *idle) Status() uint8                          { return 0 }
func (d *idle) SetStatus(uint8) error                  { return nil }
func (d *idle) GetConfig(_ uint32, b []byte) error     { clear(b); return nil }
func (d *idle) SetConfig(uint32, []byte) error         { return nil }
func (d *idle) SetCall(_, fd int) error                { return closeFD(fd) }
func (d *idle) SetErr(_, fd int) error                 { return closeFD(fd) }
func (d *idle) EnableQueue(int, bool) error            { return nil }
func (d *idle) StopQueue(int) (base uint32, err error) { return 0, nil }
func (d *idle) Reset() error                           { return nil }
func (d *idle) MemoryChanged() error                   { return nil }
func (d *idle) Disconnected()                          {}
func (d *idle) StartQueue(v vhostuser.Vring) error {
	for _, fd := range []int{v.Kick, v.Call, v.Err} {
		_ = closeFD(fd)
	}
	return nil
}

func closeFD(fd int) error {
	if fd < 0 {
		return nil
	}
	return unix.Close(fd)
}

// Invariant: qemu: Guest RAM is the memfd that the host holds.
func TestGuestHasVhostUserNICAndItsMemoryIsOurs(t *testing.T) {
	c := guest(t)
	served := make(chan error, 1)
	c.Netdevs = []Netdev{{Queues: 2, MAC: net.HardwareAddr{2, 0, 0, 0, 0, 9}, MTU: 1500,
		Connected: func(conn *net.UnixConn) {
			go func() {
				space := dma.NewSpace("guest", dma.NewFiles())
				served <- vhostuser.NewBackend(new(idle), space, slog.New(slog.DiscardHandler)).Serve(t.Context(), conn)
			}()
		}}}
	m := boot(t, c)
	h := testkit.Must(agent.SayHello.Call(t.Context(), m.Agent(), agent.None{}))(t)
	if got := h.Find(0x1af4, 0x1041); len(got) != 1 {
		t.Errorf("NIC: %+v", h.PCI)
	}
	ram := testkit.Must(unix.Mmap(int(m.Physical()[0].File.Fd()), 0, int(c.RAMSize), unix.PROT_READ, unix.MAP_SHARED))(t)
	if !bytes.Contains(ram, []byte("Linux version "+h.Kernel)) {
		t.Error("guest RAM does not hold the guest's kernel")
	}
	for _, err := range []error{unix.Munmap(ram), m.PowerOff(t.Context()), m.Close(), <-served} {
		testkit.OK(t, err)
	}
}
