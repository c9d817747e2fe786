package main

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/gpudriver"
)

// notInterrupted: the first call by which a process makes Linux watch its memory succeeds in spite of signals,
// because Linux restarts it. Each of the two calls is the first one in its own process.
func notInterrupted(t *T, _ *gpudriver.File, _ *hostNIC) {
	for _, call := range []string{"region", "where"} {
		out, err := exec.Command("/proc/self/exe", "signals", call).CombinedOutput()
		t.require(err == nil, "%s: %w: %s", call, err, out)
	}
}

// signalled makes the call ("region" or "where") while another thread sends signals to this one. During the call
// Linux locks all mappings of the process, more than 8,000.
func signalled(t *T, call string) {
	runtime.LockOSThread()
	t.gpu = only(t)
	f := open(t)
	defer f.Close()
	b := anonymous(t, 8192*page, false)
	for pos := 0; pos < len(b); pos += 2 * page {
		t.ok(os.NewSyscallError("mprotect", unix.Mprotect(b[pos:pos+page], unix.PROT_READ)))
	}
	thread := unix.Gettid()
	var calls, sends, done atomic.Bool
	sent := make(chan error, 1)
	go func() {
		for sends.Store(true); !calls.Load(); {
		}
		var err error
		for i := 0; i < 4096 && !done.Load() && err == nil; i++ {
			err = unix.Tgkill(unix.Getpid(), thread, unix.SIGURG)
		}
		sent <- err
	}()
	for !sends.Load() {
	}
	calls.Store(true)
	var err error
	if call == "region" {
		_, err = f.OpenRegion(b[:page])
	} else {
		_, err = f.Where(b[:page])
	}
	done.Store(true)
	t.ok(errors.Join(err, os.NewSyscallError("tgkill", <-sent)))
}
