package badinput

import (
	"encoding/binary"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/vhostuser"
	"vnic.dev/vnic/virtq"
)

var le = binary.LittleEndian

// Flags of descriptors (virtio 1.3, 2.7.5).
const (
	flagNext     = 1
	flagWrite    = 2
	flagIndirect = 4
)

// Features that attacker.connect accepts (virtio 1.3, 5.1.3 and 6).
const features = 1<<0 | 1<<15 | 1<<28 | 1<<32 // CSUM, MRG_RXBUF, INDIRECT_DESC, VERSION_1

const (
	ramSize = 64 << 20
	userAt  = 1 << 46 // user address of guest-physical address 0
)

// attacker is a vhost-user frontend that writes its rings as bytes.
type attacker struct {
	t     *testing.T
	s     *server
	port  int
	mac   net.HardwareAddr
	front *vhostuser.Frontend
	fd    int
	ram   []byte
	next  uint64
	rings map[int]*ring

	waiting [][]byte // frames that flush will send
	also    []func() // functions that hangUp calls
}

type ring struct {
	size              uint16
	desc, avail, used uint64
	kick, call        int
}

// attacker returns an attacker for a port, not yet connected.
func (s *server) attacker(t *testing.T, port int) *attacker {
	t.Helper()
	a := &attacker{t: t, s: s, port: port, mac: macOf(port),
		fd: int(testkit.Memfd(t, ramSize).Fd())}
	a.ram = testkit.Must(unix.Mmap(a.fd, 0, ramSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED))(t)
	t.Cleanup(func() {
		a.hangUp()
		_ = unix.Munmap(a.ram)
	})
	return a
}

// connect connects and negotiates features.
func (a *attacker) connect() *attacker { return a.connectWith(features) }

func (a *attacker) connectWith(features uint64) *attacker {
	a.t.Helper()
	a.front = vhostuser.NewFrontend(a.s.dial(a.port))
	_, _, err := a.front.Negotiate(features, uint64(vhostuser.ProtocolMQ|vhostuser.ProtocolReplyAck|
		vhostuser.ProtocolMemSlots|vhostuser.ProtocolResetDevice))
	testkit.OK(a.t, err)
	a.next, a.rings = 0, map[int]*ring{}
	return a
}

func (a *attacker) share() *attacker {
	a.t.Helper()
	testkit.OK(a.t, a.front.AddMemory(a.fd, 0, userAt, ramSize, 0))
	return a
}

func (a *attacker) hangUp() {
	for _, f := range a.also {
		f()
	}
	a.also = nil
	if a.front != nil {
		_ = a.front.Close()
		a.front = nil
	}
	for _, r := range a.rings {
		_, _ = unix.Close(r.kick), unix.Close(r.call)
	}
	a.rings = nil
}

// alloc returns the offset of n bytes on new pages.
func (a *attacker) alloc(n uint64) uint64 {
	addr := a.next
	a.next += (n + 4095) &^ 4095
	if a.next > ramSize {
		a.t.Fatal("the attacker's memory is used up")
	}
	return addr
}

func (a *attacker) start(i int, size uint16) *ring {
	a.t.Helper()
	desc, avail, used, total := virtq.Layout(size)
	buf := a.alloc(total)
	clear(a.ram[buf : buf+total])
	r := &ring{size: size, desc: buf + desc, avail: buf + avail, used: buf + used, kick: -1, call: -1}
	for _, fd := range []*int{&r.kick, &r.call} {
		*fd = testkit.Must(unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK))(a.t)
	}
	a.rings[i] = r
	testkit.OK(a.t, a.front.SetEnable(i, true))
	testkit.OK(a.t, a.front.SetupVring(vhostuser.VringSetup{Index: i, Size: size, Desc: userAt + r.desc,
		Avail: userAt + r.avail, Used: userAt + r.used, Kick: r.kick, Call: r.call}))
	return r
}

// put writes a descriptor to offset desc of the RAM.
func (a *attacker) put(desc, addr uint64, n uint32, flags, next uint16) {
	b := a.ram[desc:]
	le.PutUint64(b, addr)
	le.PutUint32(b[8:], n)
	le.PutUint16(b[12:], flags)
	le.PutUint16(b[14:], next)
}

func (a *attacker) offer(r *ring, heads ...uint16) {
	idx := le.Uint16(a.ram[r.avail+2:])
	for _, h := range heads {
		le.PutUint16(a.ram[r.avail+4+2*uint64(idx%r.size):], h)
		idx++
	}
	le.PutUint16(a.ram[r.avail+2:], idx)
	_, _ = unix.Write(r.kick, []byte{1, 0, 0, 0, 0, 0, 0, 0})
}

func (a *attacker) usedIdx(r *ring) uint16 { return le.Uint16(a.ram[r.used+2:]) }

// send sends a frame, and waits until its chain is returned.
func (a *attacker) send(r *ring, hdr [12]byte, frame []byte) {
	a.t.Helper()
	before := a.usedIdx(r)
	addr := uint64(ramSize - 4096)
	n := copy(a.ram[addr:], hdr[:])
	n += copy(a.ram[addr+12:], frame)
	a.put(r.desc, addr, uint32(n), 0, 0)
	a.offer(r, 0)
	testkit.Eventually(a.t, "the frame comes back", func() bool { return a.usedIdx(r) != before })
}

func (a *attacker) refused(err error) {
	a.t.Helper()
	testkit.ErrorIs(a.t, err, vhostuser.ErrRefused)
}
