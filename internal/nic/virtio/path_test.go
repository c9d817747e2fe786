package virtio_test

import (
	"fmt"
	"testing"

	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/nic/nictest"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/splitter"
	"vnic.dev/vnic/virtq"
)

// stream is a nictest.Stream.
type stream struct {
	a, b  *suiteGuest
	f     nictest.Frame
	tx    []virtq.Buf
	rx    []virtq.Buf
	used  [rawRing]virtq.Used
	frame int // bytes, with virtio_net_hdr
	out   int // frames sent and not completed
}

// newStream makes a stream of frames of payload bytes each. With more than 1460 bytes they are GSO packets.
func newStream(t testing.TB, payload int) *stream { return newStreamOf(t, payload, rawOptions{}) }

func newStreamOf(t testing.TB, payload int, ro rawOptions) *stream {
	files, sw := nictest.Switch(t)
	ro.pairs, ro.mtu, ro.noGPU = 1, 1500, true
	l := &stream{a: newRawGuest(t, files, sw, 0, ro), b: newRawGuest(t, files, sw, 1, ro)}
	nictest.Hello(l.b) // the switch learns b's address, so that it does not flood frames to b
	l.f = nictest.Make(l.b.mac, l.a.mac, nictest.Spec{Payload: payload})
	if payload > 1460 {
		l.f.GSO, l.f.MSS = splitter.GSOTCPv4, 1460
	}
	l.tx = l.a.layOut(&l.f, false)
	l.frame = 12 + len(l.f.Header) + payload
	size := max(2048, (l.frame+4095)&^4095)
	for i := range 2 * nictest.StreamBatch {
		addr, _ := l.b.Alloc(size)
		l.rx = append(l.rx, virtq.Buf{Addr: addr, Len: uint32(size)})
		l.post(uint32(i))
	}
	l.b.publish(0)
	for range 1000 { // until the receiver's ring has started, frames are dropped
		l.Add(1)
		l.Show()
		l.Done(true)
		if l.Take(false) > 0 {
			return l
		}
	}
	t.Fatal("no frame arrives")
	return nil
}

func (l *stream) post(cookie uint32) {
	testkit.OK(l.b.TB, l.b.rings[0].Add(nil, l.rx[cookie:cookie+1], cookie))
}

func (l *stream) Ports() []*nic.Port { return []*nic.Port{l.a.Port(), l.b.Port()} }

func (l *stream) Room() int { return len(l.rx) - l.out }

func (l *stream) Add(n int) {
	for range n {
		testkit.OK(l.a.TB, l.a.rings[1].Add(l.tx, nil, 0))
	}
	l.out += n
}

func (l *stream) Show() { l.a.publish(1) }

func (l *stream) Done(wait bool) (frames int) {
	frames = l.come(l.a, 1, wait)
	l.out -= frames
	return frames
}

func (l *stream) Take(wait bool) (frames int) {
	frames = l.come(l.b, 0, wait)
	for _, u := range l.used[:frames] {
		if int(u.Len) != l.frame {
			l.b.Fatalf("frame of %d bytes arrived as %d", l.frame, u.Len)
		}
		l.post(u.Cookie)
	}
	l.b.publish(0)
	return frames
}

func (l *stream) come(g *suiteGuest, ring int, wait bool) int {
	if wait {
		return g.poll(ring, l.used[:])
	}
	n, err := g.rings[ring].Poll(l.used[:])
	testkit.OK(g.TB, err)
	return n
}

func (l *stream) EndWorker() { l.a.dev.EndWorker(0) }

func (l *stream) Round() (frames int, err error) { return l.a.dev.Round(0) }

func (l *stream) Copy() (dst, src []byte) {
	n := len(l.f.Payload)
	return l.b.RAM[l.rx[0].Addr:][:n], l.a.RAM[l.tx[1].Addr:][:n]
}

// Invariant: nic: If a frame is split, exactly its headers go to the header buffer and its payload
// to other buffers; split or not, its bytes stay as they were sent, but for a checksum that the NIC
// completes.
func TestPathKeepsBytes(t *testing.T) {
	for _, payload := range []int{1, 64, 1448, 65000} {
		t.Run(fmt.Sprint(payload), func(t *testing.T) {
			l := newStream(t, payload)
			l.Add(1)
			l.Show()
			if n := l.come(l.b, 0, true); n != 1 || int(l.used[0].Len) != l.frame {
				t.Fatalf("%d chains, the first of %d bytes; want 1 of %d", n, l.used[0].Len, l.frame)
			}
			got := l.b.RAM[l.rx[l.used[0].Cookie].Addr:][12:l.frame]
			if string(got) != string(l.f.Bytes()) {
				t.Errorf("got  %x\nsent %x", got, l.f.Bytes())
			}
		})
	}
}

func benchStreams(b *testing.B, run func(*testing.B, nictest.Stream)) {
	for _, payload := range []int{64, 1448, 65000} {
		b.Run(fmt.Sprint(payload), func(b *testing.B) { run(b, newStream(b, payload)) })
	}
}

func BenchmarkPath(b *testing.B)   { benchStreams(b, nictest.BenchmarkPath) }
func BenchmarkStream(b *testing.B) { benchStreams(b, nictest.BenchmarkStream) }
func BenchmarkWorker(b *testing.B) { benchStreams(b, nictest.BenchmarkWorker) }
