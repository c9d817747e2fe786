package kernel

import (
	"bytes"
	"encoding/binary"
	"errors"
	"syscall"
	"testing"
	"time"

	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/testkit"
)

// fakeQueues imitates queueing disciplines. A discipline that is true in forgotten sends its packets when the next
// packet comes, and is then false; in another one the next packet waits too.
type fakeQueues struct {
	all       []qdisc
	forgotten map[uint32]bool // by parent
	sent      int
}

func (f *fakeQueues) list() ([]qdisc, error) { return append([]qdisc(nil), f.all...), nil }

func (f *fakeQueues) pass(parent uint32) {
	f.sent++
	for i := range f.all {
		q := &f.all[i]
		if q.parent == parent && f.forgotten[parent] {
			f.forgotten[parent] = false
			q.gone, q.waiting = q.gone+100, 0
		} else if q.parent == parent {
			q.waiting++
		}
	}
}

// runQueued calls send, at most kickRounds times, until each discipline where packets waited has sent bytes.
func TestWhatWaitsIsSent(t *testing.T) {
	queue := func(parent, waiting uint32) qdisc {
		return qdisc{place{0, parent}, "fq_codel", uint64(parent), waiting}
	}
	root := qdisc{place{0, tcHRoot}, "mq", 1000, 5}
	for _, c := range []struct {
		name      string
		all       []qdisc
		forgotten []uint32
		n, rounds int
	}{
		{"nothing waits", []qdisc{{root.place, "mq", 1000, 0}, queue(1, 0), queue(2, 0)}, nil, 0, 0},
		{"one", []qdisc{root, queue(1, 0), queue(2, 5)}, []uint32{2}, 1, 2},
		{"all", []qdisc{root, queue(1, 2), queue(2, 3)}, []uint32{1, 2}, 2, 2},
		{"the only one", []qdisc{{place{0x10000, tcHRoot}, "htb", 7, 2}}, []uint32{tcHRoot}, 1, 1},
		{"stopped", []qdisc{root, queue(1, 2), queue(2, 3)}, []uint32{1}, 1, kickRounds},
	} {
		f := &fakeQueues{all: c.all, forgotten: map[uint32]bool{}}
		for _, q := range c.forgotten {
			f.forgotten[q] = true
		}
		rounds := 0
		n, err := runQueued(f.list, func(queues int) error {
			leaves := 0
			for _, q := range f.all {
				if !q.shared() {
					if leaves == rounds { // in each round at most one discipline gets a packet
						f.pass(q.parent)
					}
					leaves++
				}
			}
			testkit.Equal(t, c.name+": queues in a round", queues, leaves)
			rounds++
			return nil
		})
		wantErr(t, c.name, err, nil)
		testkit.Equal(t, c.name+": queues", n, c.n)
		testkit.Equal(t, c.name+": rounds", rounds, c.rounds)
	}
}

func TestWhatCannotBeAskedOrSentIsSaid(t *testing.T) {
	list := func() ([]qdisc, error) { return []qdisc{{place{}, "pfifo_fast", 0, 1}}, nil }
	_, err := runQueued(list, func(int) error { return syscall.EPERM })
	wantErr(t, "send", err, syscall.EPERM)
	asked := 0
	_, err = runQueued(func() ([]qdisc, error) {
		if asked++; asked == 2 {
			return nil, syscall.EIO
		}
		return list()
	}, func(int) error { return nil })
	wantErr(t, "the second list", err, syscall.EIO)
	_, err = runQueued(func() ([]qdisc, error) { return nil, syscall.EINTR }, nil)
	wantErr(t, "the first list", err, syscall.EINTR)
}

// A probe has the interface's address as both Ethernet addresses, and a valid IP header checksum. setPort changes only
// the source port, to 16384 different ones.
func TestProbe(t *testing.T) {
	mac := [6]byte{2, 4, 6, 8, 10, 12}
	b := probe(mac)
	if !bytes.Equal(b[:6], mac[:]) || !bytes.Equal(b[6:12], mac[:]) {
		t.Errorf("addresses %x", b[:12])
	}
	sum := uint32(0)
	for i := ipOffset; i < udpOffset; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	testkit.Equal(t, "checksum of the IP header", sum>>16+sum&0xffff, 0xffff)
	seen := map[uint16]bool{}
	for i := range 1 << 14 {
		c := b
		setPort(&c, i)
		seen[binary.BigEndian.Uint16(c[udpOffset:])] = true
		c[udpOffset], c[udpOffset+1] = 0, 0
		if c != b {
			t.Fatalf("%d: %x", i, c)
		}
	}
	testkit.Equal(t, "ports", len(seen), 1<<14)
}

// Invariant: devmem/kernel: A bind or unbind of a queue leaves no packet waiting at a transmit queue.
func TestWhatRestartsQueuesSendsOnWhatWaits(t *testing.T) {
	defer func(was limits.Limit) { flushTime = was }(flushTime)
	flushTime = limits.Limit(time.Hour)
	td := newTestDevice(t)
	kicked := make(chan struct{}, 1000)
	td.kick = func() (int, error) {
		kicked <- struct{}{}
		return 1, errors.New("of which nothing comes but a line in the log")
	}
	times := func(what string, want int) {
		t.Helper()
		testkit.Equal(t, what, len(kicked), want)
		for len(kicked) > 0 {
			<-kicked
		}
	}
	buf := td.buffer(t, 0, 1<<20)
	tx := testkit.Must(td.BindTX(buf))(t)
	testkit.OK(t, tx.Close())
	<-tx.Done()
	times("a transmit binding", 0)
	wantErr(t, "no such queue", errOf(td.BindRX(buf, 99)), syscall.EINVAL)
	times("nothing was tried", 0)
	td.nic.refusal = syscall.EOPNOTSUPP
	wantErr(t, "refused", errOf(td.BindRX(buf, 1)), syscall.EOPNOTSUPP)
	times("split was turned on", 1)
	td.nic.refusal = nil
	rx := testkit.Must(td.BindRX(buf, 1, 2))(t)
	times("bind", 1)
	testkit.OK(t, rx.Close())
	<-rx.Done()
	times("unbind", 1)

	rx = testkit.Must(td.BindRX(buf, 1))(t)
	times("bind again", 1)
	flushTime = limits.Limit(time.Millisecond)
	td.nic.keep(rx.ID())
	testkit.OK(t, rx.Close())
	for range 3 { // Close causes one kick, memory in use the others
		<-kicked
	}
	td.nic.let(rx.ID())
	<-rx.Done()
	for len(kicked) > 0 {
		<-kicked
	}
	flushTime = limits.Limit(time.Hour)
	testkit.OK(t, td.Close())
	times("the split as it was", 1)
}

// The probe's IP source address is 0.0.0.0: a switch may drop packets whose source address belongs to another port.
func TestProbeNamesNobody(t *testing.T) {
	b := probe([6]byte{2, 0, 0, 0, 0, 1})
	sum := uint32(0)
	for i := ipOffset; i < udpOffset; i += 2 {
		sum += uint32(b[i])<<8 | uint32(b[i+1])
	}
	if sum = sum>>16 + sum&0xffff; sum != 0xffff {
		t.Errorf("the header's sum is %#x", sum)
	}
	if src := b[ipOffset+12 : ipOffset+16]; !bytes.Equal(src, make([]byte, 4)) {
		t.Errorf("from %v", src)
	}
}
