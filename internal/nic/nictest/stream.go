package nictest

import (
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/nic"
)

// Stream is a stream of equal frames from one guest to another. Add, Show, Done and Take do not allocate.
type Stream interface {
	Ports() []*nic.Port
	Room() int
	Add(n int)
	Show()                        // shows the NIC the added frames
	Done(wait bool) (frames int)  // takes completed frames back; with wait it waits for at least one
	Take(wait bool) (frames int)  // takes received frames, and posts their buffers again; wait as for Done
	EndWorker()                   // ends the worker of the transmit queue; the queue's ring stays
	Round() (frames int, e error) // runs a round of the ended worker
	Copy() (dst, src []byte)      // memory of receiver and sender, as long as the payload
}

// StreamBatch is how many frames the function Round moves.
const StreamBatch = 32

// Round moves StreamBatch frames of a stream, and waits until they are received and completed.
func Round(l Stream) {
	l.Add(StreamBatch)
	l.Show()
	for n := 0; n < StreamBatch; {
		n += l.Take(true)
	}
	for n := 0; n < StreamBatch; {
		n += l.Done(true)
	}
}

// BenchmarkPath measures frames from guest to guest, with the guests' work at both rings. x-copy is the time of a frame
// relative to that of a copy of its payload.
func BenchmarkPath(b *testing.B, l Stream) {
	dst, _ := l.Copy()
	b.SetBytes(int64(len(dst)) * StreamBatch)
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		Round(l)
		n += StreamBatch
	}
	report(b, l, b.Elapsed(), n)
}

// BenchmarkStream is like BenchmarkPath, but does not wait for each batch: it keeps the transmit ring as full as Room
// allows.
func BenchmarkStream(b *testing.B, l Stream) {
	dst, _ := l.Copy()
	b.SetBytes(int64(len(dst)))
	sent, got := 0, 0
	b.ResetTimer()
	for got < b.N {
		l.Done(false)
		if n := min(b.N-sent, l.Room()); n > 0 {
			l.Add(n)
			l.Show()
			sent += n
		}
		n := l.Take(false)
		if got += n; n == 0 {
			runtime.Gosched()
		}
	}
	b.StopTimer()
	report(b, l, b.Elapsed(), b.N)
}

// BenchmarkWorker measures the processor time of the rounds of a transmit queue's Sender.
func BenchmarkWorker(b *testing.B, l Stream) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	l.EndWorker()
	var spent time.Duration
	frames := 0
	for b.Loop() {
		l.Add(StreamBatch)
		l.Show()
		for left := StreamBatch; left > 0; { // a round has a limit in bytes too
			start := threadTime()
			n, err := l.Round()
			spent += threadTime() - start
			must(b, err)
			if n == 0 {
				b.Fatalf("a round carries nothing, and %d frames are left", left)
			}
			frames += n
			left -= n
			for range 2 {
				l.Take(false)
			}
			l.Done(false)
		}
	}
	report(b, l, spent, frames)
}

func threadTime() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t)
	return time.Duration(t.Nano())
}

func report(b *testing.B, l Stream, spent time.Duration, frames int) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	dst, src := l.Copy()
	const copies = 20000
	start := threadTime()
	for range copies {
		copy(dst, src)
	}
	ref := float64(threadTime()-start) / copies
	perFrame := float64(spent) / float64(frames)
	b.ReportMetric(perFrame, "ns/frame")
	b.ReportMetric(perFrame/ref, "x-copy")
}

// StreamAllocatesNothing checks that a stream allocates nothing after its first rounds, with a tap and without.
func StreamAllocatesNothing(t *testing.T, l Stream) {
	t.Helper()
	round := func() { Round(l) }
	measure := func(what string, warm, runs int) {
		t.Helper()
		for range warm {
			round()
		}
		if n := testing.AllocsPerRun(runs, round); n != 0 {
			t.Fatalf("%d frames cost %v allocations %s", StreamBatch, n, what)
		}
	}
	measure("without a tap", 100, 500)
	var tap Quiet
	for _, p := range l.Ports() {
		p.Link().SetTap(&tap)
	}
	measure("with a tap", 10, 100)
	if sent, came := tap.Seen(); sent < 100*StreamBatch || came < 100*StreamBatch {
		t.Errorf("the tap saw %d frames sent, %d received", sent, came)
	}
}
