package nic_test

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/testkit"
)

// A Sleeper wakes on Wake, on a kick, and when time is up. A Wake before its Park does not write its eventfd.
func TestSleeperWakesForEachReason(t *testing.T) {
	s, err := nic.NewSleeper()
	testkit.OK(t, err)
	defer s.Close()
	kick := eventFD(t)
	sleep := func(kick int, d time.Duration) (kicked bool) {
		t.Helper()
		kicked, err = s.Sleep(kick, d)
		testkit.OK(t, err)
		return kicked
	}
	s.Wake()
	if s.Signaled() {
		t.Error("a Wake cost a system call without a sleeper")
	}
	if s.Park(); sleep(kick, time.Millisecond) {
		t.Error("kicked, for no reason")
	}
	s.Park()
	s.Wake()
	s.Wake()
	if !s.Signaled() {
		t.Error("a Wake did nothing")
	}
	if sleep(kick, -1) || s.Signaled() {
		t.Error("woken, and said to be kicked, or the signal was not taken")
	}
	s.Wake()
	if s.Signaled() {
		t.Error("a Wake after the sleep cost a system call")
	}
	write(t, kick, []byte{3, 0, 0, 0, 0, 0, 0, 0})
	if s.Park(); !sleep(kick, -1) {
		t.Error("kicked, and not told of it")
	}
	if s.Park(); sleep(kick, time.Millisecond) {
		t.Error("the kick was not taken")
	}
	if s.Park(); sleep(-1, 0) {
		t.Error("kicked, without a kick descriptor")
	}
}

func TestSleeperMissesNoWake(t *testing.T) {
	s, err := nic.NewSleeper()
	testkit.OK(t, err)
	defer s.Close()
	const rounds = 20000
	var posted, seen atomic.Int64
	go func() {
		for range rounds {
			posted.Add(1)
			s.Wake()
			for seen.Load() < posted.Load() {
				runtime.Gosched()
			}
		}
	}()
	for seen.Load() < rounds {
		s.Park()
		if posted.Load() > seen.Load() {
			s.Unpark()
			seen.Add(1)
			continue
		}
		if _, err := s.Sleep(-1, -1); err != nil {
			t.Fatal(err)
		}
	}
}
