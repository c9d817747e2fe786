package kernel

import (
	"errors"
	"fmt"
	"net"
	"runtime"

	"golang.org/x/sys/unix"
)

// A driver may stop its transmit queues while it restarts a receive queue, as gve does (gve_turndown,
// gve_turnup), and start them again without running the queueing disciplines (docs/specs/gve.md, 11). Packets
// that programs send meanwhile wait in a discipline until another packet is sent through it, which may never happen:
// TCP does not retransmit a segment that still waits in its own host (skb_still_in_host_queue).
//
// So after a step that may restart queues, the Device looks for waiting packets, and while there are some, sends small
// packets to the interface's own address. A packet's queue depends on the sending CPU (XPS), or on a hash of its
// addresses and ports with a secret key: so the Device sends on all CPUs that its process's cpuset allows, from many
// ports, in at most kickRounds rounds.

// maxCPUs is CPU_SETSIZE.
const maxCPUs = 1024

// kickRounds is the most rounds of a kick: if a hash chooses the queues, a round with as many packets as queues misses
// a given queue with a probability of about 1/e.
const kickRounds = 16

// kick tries to make an interface's queueing disciplines send waiting packets. It returns how many of the disciplines
// where packets waited have sent bytes, are empty or no longer exist.
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

// runQueued calls send, with the number of disciplines besides mq and mqprio, until each discipline where packets
// waited has sent bytes, is empty or no longer exists, or until an error, at most kickRounds times. It returns how many
// of the disciplines where packets waited have sent bytes, are empty or no longer exist.
func runQueued(list func() ([]qdisc, error), send func(queues int) error) (n int, err error) {
	all, err := list()
	if err != nil {
		return 0, err
	}
	stuck := map[place]uint64{} // bytes that the discipline had sent before
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

// prober sends meaningless packets from an interface to itself.
type prober struct {
	fd    int
	to    unix.SockaddrLinklayer
	frame [60]byte // the shortest Ethernet frame, without its FCS
	cpus  []int    // the CPUs that this process's cpuset allowed at the first send
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
	if p.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil { // 0: it receives nothing
		return nil, fmt.Errorf("packet socket: %w", err)
	}
	return p, nil
}

func (p *prober) close() { _ = unix.Close(p.fd) }

// send tries to send at least one packet on each CPU of cpus that still exists and is allowed; if all are, at least
// queues packets in all.
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
			if moveTo(cpu) { // false: no such CPU, or not allowed
				p.cpus = append(p.cpus, cpu)
			}
		}
	}
	for _, cpu := range p.cpus {
		if !moveTo(cpu) {
			continue // the CPU was removed, or is no longer allowed
		}
		for range (queues + len(p.cpus) - 1) / len(p.cpus) {
			p.sent++
			setPort(&p.frame, p.sent)
			// A discipline that has no room for this packet still sends the packets that it holds.
			err := unix.Sendto(p.fd, p.frame[:], unix.MSG_DONTWAIT, &p.to)
			if err != nil && err != unix.ENOBUFS && err != unix.EAGAIN {
				return fmt.Errorf("send a packet: %w", err)
			}
		}
	}
	return nil
}

func moveTo(cpu int) bool {
	var one unix.CPUSet
	one.Set(cpu)
	return unix.SchedSetaffinity(0, &one) == nil
}

const (
	ipOffset  = 14
	udpOffset = ipOffset + 20
)

// probe returns a frame from the interface to itself, with a UDP packet that no host accepts: from 0.0.0.0 to
// 127.0.0.1, destination port 9 (discard), with a time to live of 1.
func probe(mac [6]byte) (b [60]byte) {
	copy(b[:], mac[:])
	copy(b[6:], mac[:])
	copy(b[12:], []byte{0x08, 0x00})
	copy(b[ipOffset:], []byte{0x45, 0, 0, 28, 0, 0, 0, 0, 1, unix.IPPROTO_UDP, 0x3a, 0xd1, 0, 0, 0, 0, 127, 0, 0, 1})
	copy(b[udpOffset:], []byte{0, 0, 0, 9, 0, 8, 0, 0}) // no checksum
	return b
}

// setPort sets the UDP source port to one of 16384, which n chooses.
func setPort(b *[60]byte, n int) {
	b[udpOffset], b[udpOffset+1] = 0xc0|byte(n>>8&0x3f), byte(n)
}
