package kernel

import (
	"errors"
	"fmt"
	"net"
	"runtime"

	"golang.org/x/sys/unix"
)

// A driver may stop its transmit queues while it restarts a receive queue, as gve does (gve_turndown, gve_turnup), and
// start them again without having the queueing disciplines run (docs/specs/gve.md, 11). What was sent meanwhile then
// waits there until something else is sent to the same queue. TCP does not see to that: it sends nothing again that
// still waits in its own host (skb_still_in_host_queue), and what else it has to send, acknowledgements say, goes to
// another queue as soon as it has looked for its route anew. So who restarts a queue has to, for all who send there.
//
// A packet is what has a discipline run that keeps what it has. So small ones are sent, to the interface's own address,
// and only while something waits. Where the kernel puts a packet depends on the CPU that sends it (XPS) and on a hash
// of its addresses and ports, whose key is secret: so they are sent on all CPUs, from many ports.

// maxCPUs is CPU_SETSIZE: one more than the highest number that a [unix.CPUSet] has a place for.
const maxCPUs = 1024

// kickRounds bounds how often packets are sent: a round of as many as there are queues misses one with a chance of 1/e.
const kickRounds = 16

// kick has the queueing disciplines of an interface send on what waits there although nothing stops it. It returns how
// many there were that had to be told. A queue that is stopped, as the NIC is behind, is no error, whenever it goes on.
func kick(ifindex int) (n int, err error) {
	err = withRoutes(func(ask asker) error {
		list := func() ([]qdisc, error) { return qdiscs(ask, ifindex) }
		var p *prober
		defer func() {
			if p != nil {
				p.close()
			}
		}()
		n, err = runQueued(list, func(queues int) (err error) {
			if p == nil {
				if p, err = newProber(ifindex); err != nil {
					return err
				}
			}
			return p.send(queues)
		})
		return err
	})
	return n, err
}

// runQueued has send send packets, for so many queues, until of all disciplines where packets waited something has
// gone, or nothing waits there any more. It returns how many those are.
func runQueued(list func() ([]qdisc, error), send func(queues int) error) (n int, err error) {
	all, err := list()
	if err != nil {
		return 0, err
	}
	stuck := map[place]uint64{} // what had gone
	leaves := 0
	for _, q := range all {
		if q.shared() {
			continue
		}
		leaves++
		if q.waiting > 0 {
			stuck[q.place] = q.gone
		}
	}
	for round := 0; round < kickRounds && len(stuck) > 0; round++ {
		if err := send(leaves); err != nil {
			return n, err
		}
		if all, err = list(); err != nil {
			return n, err
		}
		still := map[place]uint64{}
		for _, q := range all {
			if gone, ok := stuck[q.place]; ok && q.waiting > 0 && q.gone == gone {
				still[q.place] = gone
			}
		}
		n += len(stuck) - len(still)
		stuck = still
	}
	return n, nil
}

// prober sends packets that mean nothing, of an interface to itself.
type prober struct {
	fd    int
	to    unix.SockaddrLinklayer
	frame [60]byte // the least that Ethernet takes
	cpus  []int    // that a thread of ours may run on
	sent  int
}

func newProber(ifindex int) (*prober, error) {
	ifc, err := net.InterfaceByIndex(ifindex)
	if err != nil {
		return nil, err
	}
	if len(ifc.HardwareAddr) != 6 {
		return nil, fmt.Errorf("%s has no Ethernet address: %w", ifc.Name, unix.EAFNOSUPPORT)
	}
	p := &prober{frame: probe([6]byte(ifc.HardwareAddr)), to: unix.SockaddrLinklayer{Ifindex: ifindex, Halen: 6,
		Protocol: 0x0008}} // ETH_P_IP, big endian
	copy(p.to.Addr[:], ifc.HardwareAddr)
	if p.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil { // receives nothing
		return nil, fmt.Errorf("packet socket: %w", err)
	}
	return p, nil
}

func (p *prober) close() { _ = unix.Close(p.fd) }

// send sends a packet for each of so many queues, and one on each CPU at least.
func (p *prober) send(queues int) (err error) {
	var was unix.CPUSet
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.SchedGetaffinity(0, &was); err != nil {
		return fmt.Errorf("sched_getaffinity: %w", err)
	}
	defer func() { err = errors.Join(err, unix.SchedSetaffinity(0, &was)) }()
	if p.cpus == nil {
		for cpu := range maxCPUs {
			if moveTo(cpu) { // else there is none of that number, or it is not for us
				p.cpus = append(p.cpus, cpu)
			}
		}
	}
	for _, cpu := range p.cpus {
		if !moveTo(cpu) {
			continue // it has gone
		}
		for range (queues + len(p.cpus) - 1) / len(p.cpus) {
			p.sent++
			setPort(&p.frame, p.sent)
			// A discipline that has no room for it runs all the same.
			err := unix.Sendto(p.fd, p.frame[:], unix.MSG_DONTWAIT, &p.to)
			if err != nil && err != unix.ENOBUFS && err != unix.EAGAIN {
				return fmt.Errorf("send a packet: %w", err)
			}
		}
	}
	return nil
}

// moveTo has the calling thread run on one CPU.
func moveTo(cpu int) bool {
	var one unix.CPUSet
	one.Set(cpu)
	return unix.SchedSetaffinity(0, &one) == nil
}

// Of a packet of [probe].
const (
	ipOffset  = 14
	udpOffset = ipOffset + 20
)

// probe is an Ethernet frame to the station that sends it, with a UDP packet that no host takes: from no address (any
// other would be somebody's, and switches note who uses which) to the loopback address, for port 9 (discard), with a
// time to live of 1 and no data.
func probe(mac [6]byte) (b [60]byte) {
	copy(b[:], mac[:])
	copy(b[6:], mac[:])
	copy(b[12:], []byte{0x08, 0x00})
	copy(b[ipOffset:], []byte{0x45, 0, 0, 28, 0, 0, 0, 0, 1, unix.IPPROTO_UDP, 0x3a, 0xd1, 0, 0, 0, 0, 127, 0, 0, 1})
	copy(b[udpOffset:], []byte{0, 0, 0, 9, 0, 8, 0, 0}) // without a checksum
	return b
}

// setPort sets the source port of a probe, one of 16384.
func setPort(b *[60]byte, n int) {
	b[udpOffset], b[udpOffset+1] = 0xc0|byte(n>>8&0x3f), byte(n)
}
