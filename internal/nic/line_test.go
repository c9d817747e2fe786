package nic_test

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/testkit"
)

// almost is the greatest count that an eventfd can have: any further write blocks.
var almost = []byte{0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// eventFD makes an eventfd, which the test closes.
func eventFD(t *testing.T) int {
	t.Helper()
	fd := testkit.Must(unix.Eventfd(0, unix.EFD_CLOEXEC))(t)
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// write writes count to an eventfd.
func write(t *testing.T, fd int, count []byte) {
	t.Helper()
	_, err := unix.Write(fd, count)
	testkit.OK(t, err)
}

// one is one signal.
var one = []byte{1, 0, 0, 0, 0, 0, 0, 0}

// frontend makes an eventfd, an EventFD of it, and the frontend's own descriptor.
func frontend(t *testing.T, ls *nic.EventFDs) (l *nic.EventFD, front int) {
	t.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	testkit.OK(t, err)
	front, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	testkit.OK(t, err)
	t.Cleanup(func() { _ = unix.Close(front) })
	return ls.New(fd), front
}

// freeStuck waits until a writer is stuck in the only EventFD, and then acts as a Monitor.
func freeStuck(ls *nic.EventFDs, l *nic.EventFD) {
	for !l.Stuck() {
		runtime.Gosched()
	}
	ls.Quarantine()
	ls.End(l)
	for ls.Open() {
		ls.Free()
	}
}

func TestLineSignals(t *testing.T) {
	var ls nic.EventFDs
	l, front := frontend(t, &ls)
	l.Fire()
	l.Fire()
	var b [8]byte
	if _, err := unix.Read(front, b[:]); err != nil || b[0] != 2 {
		t.Errorf("%v, count %d", err, b[0])
	}
	write(t, front, almost)
	l.Fire() // the eventfd is full and does not block
	if l.Stuck() || l.Busy() || !ls.Open() {
		t.Error("full: stuck, busy, or not open")
	}
	ls.End(l)
	ls.End(nil)
	l.Fire() // after End, without effect
	if ls.Open() {
		t.Error("open after its end")
	}
}

// The monitor need not look while there are no writes: the first writer wakes it before it may
// block.
//
// Invariant: nic: An idle device wakes no thread.
func TestFirstWriterWakesTheWatcher(t *testing.T) {
	var ls nic.EventFDs
	l, _ := frontend(t, &ls)
	woken := make(chan bool, 9)
	ls.OnWrite(func() { woken <- true })
	l.Fire() // the monitor is not parked yet
	l.Enter()
	if ls.Park() || ls.Parked() {
		t.Error("parked while a writer is inside")
	}
	l.Write()
	l.Fire()
	l.Enter()
	ls.End(l)
	if ls.Park() || ls.Parked() {
		t.Error("parked while a writer is inside of what has ended")
	}
	l.Write()
	ls.Free()
	if len(woken) != 0 {
		t.Errorf("woken %d times, awake", len(woken))
	}
	var front int
	l, front = frontend(t, &ls)
	for range 3 {
		if !ls.Park() || !ls.Parked() {
			t.Fatal("not parked")
		}
		l.Fire()
		l.Fire()
		if len(woken) != 1 || ls.Parked() {
			t.Fatalf("woken %d times, parked %t", len(woken), ls.Parked())
		}
		<-woken
	}
	_, err := unix.Read(front, make([]byte, 8))
	testkit.OK(t, err)
	write(t, front, almost)
	testkit.OK(t, unix.SetNonblock(front, false))
	ls.Park()
	written := make(chan bool)
	go func() {
		l.Fire()
		close(written)
	}()
	<-woken // a writer wakes the monitor before it may block
	freeStuck(&ls, l)
	<-written
}

// Blocked writers are freed, although a hostile frontend makes the eventfd blocking and fills it as
// fast as it can.
func TestLineFreesWritersOfAHostileFrontend(t *testing.T) {
	var ls nic.EventFDs
	l, front := frontend(t, &ls)
	write(t, front, almost) // first, because it fits only into an empty one
	var stop atomic.Bool
	var filling atomic.Int32
	for range 4 {
		filling.Add(1)
		go func() {
			defer filling.Add(-1)
			for !stop.Load() {
				_ = unix.SetNonblock(front, false)
				_, _ = unix.Write(front, almost) // blocks until we read
			}
		}()
	}
	var writers sync.WaitGroup
	for range 3 {
		writers.Go(func() {
			for !ls.Quarantined() {
				l.Fire()
			}
		})
	}
	freeStuck(&ls, l)
	writers.Wait()

	stop.Store(true)
	for filling.Load() > 0 {
		_ = unix.SetNonblock(front, true)
		var b [8]byte
		_, _ = unix.Read(front, b[:])
	}
	fd := testkit.Must(unix.Eventfd(0, unix.EFD_CLOEXEC))(t)
	if ls.New(fd) != nil {
		t.Error("a quarantined frontend gave an eventfd")
	}
	testkit.ErrorIs(t, testkit.Err(unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)), unix.EBADF, "it is open")
	ls.Release()
	if l, _ := frontend(t, &ls); l == nil {
		t.Error("the next frontend could not")
	} else {
		ls.End(l)
	}
}

// TestPeerSeesNoOtherFlags: O_NONBLOCK belongs to the open file. A peer that reads its eventfd
// until EAGAIN, as QEMU does, would wait for ever if we cleared the flag even for a moment.
func TestPeerSeesNoOtherFlags(t *testing.T) {
	fd := testkit.Must(unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK))(t)
	defer unix.Close(fd)
	var ls nic.EventFDs
	var stop atomic.Bool
	var peer sync.WaitGroup
	defer func() { stop.Store(true); peer.Wait() }()
	looked := make(chan struct{})
	peer.Go(func() {
		for first := true; first || !stop.Load(); first = false {
			if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0); err != nil || flags&unix.O_NONBLOCK == 0 {
				t.Errorf("flags %#x, %v: no O_NONBLOCK", flags, err)
				break
			}
			if first {
				close(looked)
			}
		}
	})
	<-looked
	for range 20_000 {
		ls.End(ls.New(testkit.Must(unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0))(t)))
	}
}

// TestEndWhileOthersFire: a goroutine that fires an EventFD during End writes that eventfd or
// nothing, never a new file with the same descriptor number.
func TestEndWhileOthersFire(t *testing.T) {
	testkit.CheckFDs(t)
	var ls nic.EventFDs
	for range 2000 {
		fd := testkit.Must(unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK))(t)
		l := ls.New(fd)
		var fires sync.WaitGroup
		started := make(chan struct{})
		fires.Go(func() {
			close(started)
			for range 20 {
				l.Fire()
			}
		})
		<-started
		ls.End(l)
		next := testkit.Must(unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK))(t) // may get the same number
		fires.Wait()
		ls.Free()
		var b [8]byte
		if _, err := unix.Read(next, b[:]); err != unix.EAGAIN {
			t.Fatalf("another descriptor was written: %x, %v", b, err)
		}
		testkit.OK(t, unix.Close(next))
	}
}
