package badinput

import (
	"bytes"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"vnic.dev/vnic/internal/driver"
	"vnic.dev/vnic/internal/testkit"
)

type innocents struct {
	a, b *guest
	stop chan struct{}
	done sync.WaitGroup

	mu     sync.Mutex
	worst  time.Duration // under mu: the longest time that a frame took, after the last call of since
	frames int           // under mu: frames that arrived after that call
}

// guest is a guest with a driver that behaves.
type guest struct {
	mac      net.HardwareAddr
	want     atomic.Pointer[[]byte] // the frame whose arrival receive reports
	came     chan *[]byte           // receive sends want to it, when that frame arrives
	count    atomic.Uint64
	transmit func(frame []byte) (n int, err error) // sends a frame, if there is room for it
	control  func() uint64                         // control frames that the driver has kept for itself; 0 with gve
}

func macOf(port int) net.HardwareAddr {
	return net.HardwareAddr{2, 0x76, 0x6e, 0x69, 0, byte(port + 1)}
}

func (s *server) attach(port int) *guest {
	s.t.Helper()
	mac := macOf(port)
	nic, err := driver.Attach(driver.FrontendOptions{Conn: s.dial(port), MAC: mac, Options: driver.Options{QueuePairs: 1}})
	testkit.OK(s.t, err)
	g := &guest{mac: mac, came: make(chan *[]byte, 2),
		transmit: func(frame []byte) (n int, err error) { return nic.Transmit(0, []driver.TxFrame{{Header: frame}}) },
		control:  func() uint64 { return nic.Stats().Rx[0].Control }}
	testkit.OK(s.t, nic.Start(g))
	s.t.Cleanup(func() { testkit.OK(s.t, nic.Close()) })
	return g
}

// Receive implements driver.Receiver.
func (g *guest) Receive(frames []driver.RxFrame) {
	for i := range frames {
		g.receive(frames[i].Header)
	}
}

func (g *guest) receive(frame []byte) {
	g.count.Add(1)
	want := g.want.Load()
	if want == nil || !bytes.Equal(frame, *want) {
		return // the input of a row may have caused this frame
	}
	select {
	case g.came <- want:
	default: // came is full: meet sends its broadcast until one arrives
	}
}

// Completed implements driver.Receiver.
func (g *guest) Completed(int, []uint64) {}

// Wake implements driver.Receiver.
func (g *guest) Wake() {}

// testType is IEEE 802's Local Experimental EtherType 2.
const testType = 0x88b6

func (g *guest) frame(to net.HardwareAddr, n byte) []byte {
	b := append(append(append([]byte{}, to...), g.mac...), testType>>8, testType&0xff)
	return append(b, bytes.Repeat([]byte{n}, 100)...)
}

func talk(t *testing.T, a, b *guest) *innocents {
	in := &innocents{a: a, b: b, stop: make(chan struct{})}
	a.meet(t, b)
	b.meet(t, a)
	in.done.Go(func() {
		for n := byte(0); ; n++ {
			select {
			case <-in.stop:
				return
			default:
			}
			from, to := a, b
			if n%2 == 1 {
				from, to = b, a
			}
			if !in.exchange(t, from, to, n) {
				return
			}
		}
	})
	t.Cleanup(func() {
		close(in.stop)
		in.done.Wait()
	})
	return in
}

// meet sends broadcasts until one arrives: a broadcast is dropped if its receiver has no buffers.
func (g *guest) meet(t *testing.T, other *guest) {
	t.Helper()
	hello := g.frame(net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, 0)
	other.want.Store(&hello)
	testkit.Eventually(t, "the innocent guests know each other", func() bool {
		_, err := g.transmit(hello)
		testkit.OK(t, err)
		return len(other.came) > 0
	})
}

func (in *innocents) exchange(t *testing.T, from, to *guest, n byte) bool {
	want := from.frame(to.mac, n)
	to.want.Store(&want)
	for len(to.came) > 0 { // broadcasts of meet are left
		<-to.came
	}
	start := time.Now()
	for sent := 0; sent == 0; runtime.Gosched() { // the ring may be full of frames that a row sends
		var err error
		if sent, err = from.transmit(want); err != nil {
			t.Errorf("an innocent guest cannot send: %v", err)
			return false
		}
		if time.Since(start) > testkit.Patience {
			t.Error("an innocent guest's ring stays full")
			return false
		}
	}
	for lost, came := time.After(testkit.Patience), (*[]byte)(nil); came != &want; {
		select {
		case came = <-to.came:
		case <-lost:
			t.Error("an innocent guest's frame is lost")
			return false
		}
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	in.worst = max(in.worst, time.Since(start))
	in.frames++
	return true
}

// since returns the longest time of a frame, and the number of frames, since its last call.
func (in *innocents) since() (worst time.Duration, frames int) {
	in.mu.Lock()
	defer in.mu.Unlock()
	worst, frames = in.worst, in.frames
	in.worst, in.frames = 0, 0
	return worst, frames
}

func (in *innocents) move(t *testing.T, n int) {
	t.Helper()
	moved := 0
	testkit.Eventually(t, "innocent guests exchange frames", func() bool {
		in.mu.Lock()
		defer in.mu.Unlock()
		if moved == 0 {
			moved = in.frames + n
		}
		return in.frames >= moved
	})
}
