package virtio_test

import (
	"fmt"
	"log/slog"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/virtq"
	"vnic.dev/vnic/wire"
)

// lane is a stream of equal frames from one guest to another, that allocates nothing itself.
type lane struct {
	a, b   *rawGuest
	tx, rx []virtq.Buf // one frame's header and payload; each receive buffer
	used   [rawRing]virtq.Used
	frame  int // bytes, virtio_net_hdr included
}

const laneBatch = 32

// newLane prepares frames of payload bytes; above the MTU they are super-packets.
func newLane(t testing.TB, payload int) *lane {
	files := dma.NewFiles()
	sw := wire.NewSwitch(slog.New(slog.DiscardHandler))
	t.Cleanup(func() { _ = sw.Close() })
	l := &lane{a: newRawGuest(t, files, sw, "a", 1, 1), b: newRawGuest(t, files, sw, "b", 2, 1)}
	gso := 0
	if payload > 1460 {
		gso = 1460
	}
	head := append(netHeader(gso), tcpFrame(l.b.mac, l.a.mac, payload)...)
	addr, mem := l.a.alloc(len(head))
	copy(mem, head)
	data, mem := l.a.alloc(payload)
	for i := range mem {
		mem[i] = byte(i)
	}
	l.tx = []virtq.Buf{{Addr: addr, Len: uint32(len(head))}, {Addr: data, Len: uint32(payload)}}
	l.frame = len(head) + payload
	size := max(2048, (l.frame+4095)&^4095)
	for range 2 * laneBatch {
		addr, _ := l.b.alloc(size)
		l.rx = append(l.rx, virtq.Buf{Addr: addr, Len: uint32(size)})
	}
	for i := range l.rx {
		l.post(uint32(i))
	}
	l.b.publish(0)
	// b speaks once, so that the switch knows where it is and floods nothing.
	hello, mem := l.b.alloc(66)
	copy(mem, append(make([]byte, 12), tcpFrame(l.a.mac, l.b.mac, 0)...))
	l.b.must(l.b.rings[1].Add([]virtq.Buf{{Addr: hello, Len: 66}}, nil, 0))
	l.b.publish(1)
	l.b.poll(1, l.used[:])
	l.settle(t)
	return l
}

func (l *lane) post(cookie uint32) {
	testkit.OK(l.b.t, l.b.rings[0].Add(nil, l.rx[cookie:cookie+1], cookie))
}

// settle sends until a frame arrives: the first may meet a ring that has not started, and is dropped then.
func (l *lane) settle(t testing.TB) {
	for range 1000 {
		l.send(1)
		l.a.poll(1, l.used[:])
		if n, err := l.b.rings[0].Poll(l.used[:]); err != nil {
			t.Fatal(err)
		} else if n > 0 {
			l.repost(n)
			return
		}
	}
	t.Fatal("no frame arrives")
}

func (l *lane) send(n int) {
	for range n {
		testkit.OK(l.a.t, l.a.rings[1].Add(l.tx, nil, 0))
	}
	l.a.publish(1)
}

func (l *lane) repost(n int) {
	for _, u := range l.used[:n] {
		if int(u.Len) != l.frame {
			l.b.t.Fatalf("frame of %d bytes arrived as %d", l.frame, u.Len)
		}
		l.post(u.Cookie)
	}
	l.b.publish(0)
}

// round moves a batch: sends it, waits until it is sent and received, and posts the buffers again.
func (l *lane) round() {
	l.send(laneBatch)
	for n := 0; n < laneBatch; {
		k := l.b.poll(0, l.used[:])
		l.repost(k)
		n += k
	}
	for n := 0; n < laneBatch; {
		n += l.a.poll(1, l.used[:])
	}
}

// Bytes arrive as they were sent, whole, with what virtio_net_hdr says of them.
//
// Invariant: nic: Headers go to the header buffer and payload elsewhere, to the byte, and nothing
// else changes on the way.
func TestPathKeepsBytes(t *testing.T) {
	for _, payload := range []int{1, 64, 1448, 65000} {
		t.Run(fmt.Sprint(payload), func(t *testing.T) {
			l := newLane(t, payload)
			l.send(1)
			if n := l.b.poll(0, l.used[:]); n != 1 || int(l.used[0].Len) != l.frame {
				t.Fatalf("%d chains, the first of %d bytes; want 1 of %d", n, l.used[0].Len, l.frame)
			}
			got := l.b.mem[l.rx[l.used[0].Cookie].Addr:][:l.frame]
			sent := l.a.mem[l.tx[0].Addr:][:l.tx[0].Len]
			if string(got[12:66]) != string(sent[12:66]) {
				t.Errorf("headers %x, sent %x", got[12:66], sent[12:66])
			}
			for i, b := range got[66:] {
				if b != byte(i) {
					t.Fatalf("payload byte %d is %#x", i, b)
				}
			}
		})
	}
}

// BenchmarkPath is guest to guest over two devices, both rings and both kicks included, with a copy of the same bytes
// as the reference.
func BenchmarkPath(b *testing.B) {
	for _, payload := range []int{64, 1448, 65000} {
		b.Run(fmt.Sprint(payload), func(b *testing.B) {
			l := newLane(b, payload)
			b.SetBytes(int64(payload))
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				l.round()
				n += laneBatch
			}
			perFrame := float64(b.Elapsed().Nanoseconds()) / float64(n)
			b.ReportMetric(perFrame, "ns/frame")
			src, dst := l.a.mem[l.tx[1].Addr:][:payload], l.b.mem[l.rx[0].Addr:][:payload]
			const copies = 20000
			start := time.Now()
			for range copies {
				copy(dst, src)
			}
			ref := float64(time.Since(start).Nanoseconds()) / copies
			b.ReportMetric(perFrame/ref, "x-copy")
		})
	}
}

// BenchmarkStream is the same without a pause: both rings are kept full, nobody sleeps. What a frame costs is the
// worker's time, as long as the test's drivers are not slower.
func BenchmarkStream(b *testing.B) {
	for _, payload := range []int{64, 1448, 65000} {
		b.Run(fmt.Sprint(payload), func(b *testing.B) {
			l := newLane(b, payload)
			b.SetBytes(int64(payload))
			sent, done, got := 0, 0, 0
			b.ResetTimer()
			for got < b.N {
				for sent < b.N && sent-done < len(l.rx) {
					testkit.OK(b, l.a.rings[1].Add(l.tx, nil, 0))
					sent++
				}
				l.a.publish(1)
				n, err := l.a.rings[1].Poll(l.used[:])
				testkit.OK(b, err)
				done += n
				if n, err = l.b.rings[0].Poll(l.used[:]); err != nil {
					b.Fatal(err)
				}
				l.repost(n)
				got += n
				if n == 0 {
					runtime.Gosched()
				}
			}
			b.StopTimer()
			perFrame := float64(b.Elapsed().Nanoseconds()) / float64(b.N)
			src, dst := l.a.mem[l.tx[1].Addr:][:payload], l.b.mem[l.rx[0].Addr:][:payload]
			start := time.Now()
			const copies = 20000
			for range copies {
				copy(dst, src)
			}
			b.ReportMetric(perFrame/(float64(time.Since(start).Nanoseconds())/copies), "x-copy")
		})
	}
}

// BenchmarkWorker is what a frame costs a transmit queue's worker, in processor time of its thread:
// here the benchmark's, which does the worker's rounds. The rings' other ends are not counted; the
// reference is the same as above.
func BenchmarkWorker(b *testing.B) {
	for _, payload := range []int{64, 1448, 65000} {
		b.Run(fmt.Sprint(payload), func(b *testing.B) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			l := newLane(b, payload)
			l.a.dev.EndWorker(0)
			var spent time.Duration
			frames := 0
			for b.Loop() {
				for range laneBatch {
					l.a.must(l.a.rings[1].Add(l.tx, nil, 0))
				}
				_ = l.a.rings[1].Publish()
				start := threadTime()
				n, err := l.a.dev.Round(0)
				spent += threadTime() - start
				frames += n
				l.a.must(err)
				for range 2 {
					if n, err = l.b.rings[0].Poll(l.used[:]); err != nil {
						b.Fatal(err)
					}
					l.repost(n)
				}
				_, err = l.a.rings[1].Poll(l.used[:])
				l.a.must(err)
			}
			src, dst := l.a.mem[l.tx[1].Addr:][:payload], l.b.mem[l.rx[0].Addr:][:payload]
			const copies = 20000
			start := threadTime()
			for range copies {
				copy(dst, src)
			}
			ref := float64(threadTime()-start) / copies
			perFrame := float64(spent) / float64(frames)
			b.ReportMetric(perFrame, "ns/frame")
			b.ReportMetric(perFrame/ref, "x-copy")
		})
	}
}

func threadTime() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t)
	return time.Duration(t.Nano())
}
