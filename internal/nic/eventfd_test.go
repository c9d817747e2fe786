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

// almost is the greatest count that an eventfd can have.
var almost = []byte{0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

func eventFD(t *testing.T) int {
	t.Helper()
	fd := testkit.Must(unix.Eventfd(0, unix.EFD_CLOEXEC))(t)
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

func write(t *testing.T, fd int, count []byte) {
	t.Helper()
	_, err := unix.Write(fd, count)
	testkit.OK(t, err)
}

var one = []byte{1, 0, 0, 0, 0, 0, 0, 0}

// frontend makes a nonblocking eventfd, and returns an EventFD of it and the frontend's own descriptor of it.
func frontend(t *testing.T, fds *nic.EventFDs) (e *nic.EventFD, front int) {
	t.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	testkit.OK(t, err)
	front, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	testkit.OK(t, err)
	t.Cleanup(func() { _ = unix.Close(front) })
	return fds.New(fd), front
}

// freeStuck waits until a writer is stuck in e, and then acts as a Monitor: it ends e, and frees writers until no
// EventFD of fds is open.
func freeStuck(fds *nic.EventFDs, e *nic.EventFD) {
	for !e.Stuck() {
		runtime.Gosched()
	}
	fds.Quarantine()
	fds.End(e)
	for fds.Open() {
		fds.Free()
	}
}

func TestLineSignals(t *testing.T) {
	var fds nic.EventFDs
	e, front := frontend(t, &fds)
	e.Fire()
	e.Fire()
	var b [8]byte
	if _, err := unix.Read(front, b[:]); err != nil || b[0] != 2 {
		t.Errorf("%v, count %d", err, b[0])
	}
	write(t, front, almost)
	e.Fire() // the eventfd is full and does not block
	if e.Stuck() || e.Busy() || !fds.Open() {
		t.Error("full: stuck, busy, or not open")
	}
	fds.End(e)
	fds.End(nil)
	e.Fire()
	if fds.Open() {
		t.Error("open after its end")
	}
}

// Invariant: nic: An idle device wakes no thread.
func TestFirstWriterWakesTheWatcher(t *testing.T) {
	var fds nic.EventFDs
	e, _ := frontend(t, &fds)
	woken := make(chan bool, 9)
	fds.OnWrite(func() { woken <- true })
	e.Fire()
	e.Enter()
	if fds.Park() || fds.Parked() {
		t.Error("parked while a writer is inside")
	}
	e.Write()
	e.Fire()
	e.Enter()
	fds.End(e)
	if fds.Park() || fds.Parked() {
		t.Error("parked while a writer is inside of what has ended")
	}
	e.Write()
	fds.Free()
	if len(woken) != 0 {
		t.Errorf("woken %d times, awake", len(woken))
	}
	var front int
	e, front = frontend(t, &fds)
	for range 3 {
		if !fds.Park() || !fds.Parked() {
			t.Fatal("not parked")
		}
		e.Fire()
		e.Fire()
		if len(woken) != 1 || fds.Parked() {
			t.Fatalf("woken %d times, parked %t", len(woken), fds.Parked())
		}
		<-woken
	}
	_, err := unix.Read(front, make([]byte, 8))
	testkit.OK(t, err)
	write(t, front, almost)
	testkit.OK(t, unix.SetNonblock(front, false))
	fds.Park()
	written := make(chan bool)
	go func() {
		e.Fire()
		close(written)
	}()
	<-woken
	freeStuck(&fds, e)
	<-written
}

// Free frees blocked writers, although a hostile frontend fills the blocking eventfd as fast as it can.
func TestLineFreesWritersOfAHostileFrontend(t *testing.T) {
	var fds nic.EventFDs
	e, front := frontend(t, &fds)
	write(t, front, almost) // before the writers start: this count fits only into an empty eventfd
	var stop atomic.Bool
	var filling atomic.Int32
	for range 4 {
		filling.Add(1)
		go func() {
			defer filling.Add(-1)
			for !stop.Load() {
				_ = unix.SetNonblock(front, false)
				_, _ = unix.Write(front, almost) // may block until the test reads the eventfd
			}
		}()
	}
	var writers sync.WaitGroup
	for range 3 {
		writers.Go(func() {
			for !fds.Quarantined() {
				e.Fire()
			}
		})
	}
	freeStuck(&fds, e)
	writers.Wait()

	stop.Store(true)
	for filling.Load() > 0 {
		_ = unix.SetNonblock(front, true)
		var b [8]byte
		_, _ = unix.Read(front, b[:])
	}
	fd := testkit.Must(unix.Eventfd(0, unix.EFD_CLOEXEC))(t)
	if fds.New(fd) != nil {
		t.Error("a quarantined frontend gave an eventfd")
	}
	testkit.ErrorIs(t, testkit.Err(unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)), unix.EBADF, "it is open")
	fds.Release()
	if e, _ := frontend(t, &fds); e == nil {
		t.Error("the next frontend could not")
	} else {
		fds.End(e)
	}
}

// New and End do not clear O_NONBLOCK, which belongs to the open file, even for a moment: a peer that reads its eventfd
// when there is no signal would hang.
func TestPeerSeesNoOtherFlags(t *testing.T) {
	fd := testkit.Must(unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK))(t)
	defer unix.Close(fd)
	var fds nic.EventFDs
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
		fds.End(fds.New(testkit.Must(unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0))(t)))
	}
}

// A goroutine that fires an EventFD during End and after it does not write a new file with the same descriptor number.
func TestEndWhileOthersFire(t *testing.T) {
	testkit.CheckFDs(t)
	var fds nic.EventFDs
	for range 2000 {
		fd := testkit.Must(unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK))(t)
		e := fds.New(fd)
		var fires sync.WaitGroup
		started := make(chan struct{})
		fires.Go(func() {
			close(started)
			for range 20 {
				e.Fire()
			}
		})
		<-started
		fds.End(e)
		next := testkit.Must(unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK))(t) // may get the same number
		fires.Wait()
		fds.Free()
		var b [8]byte
		if _, err := unix.Read(next, b[:]); err != unix.EAGAIN {
			t.Fatalf("another descriptor was written: %x, %v", b, err)
		}
		testkit.OK(t, unix.Close(next))
	}
}
