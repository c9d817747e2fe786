package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/gpudriver"
)

// notInterrupted: the first call of a program that has Linux watch its memory begins again when a signal comes, and
// does not fail. A process has one first call, so each call has a process.
func notInterrupted(g gpudriver.GPU) error {
	return withNIC(g, func(*gpudriver.File, *hostNIC) error {
		for _, call := range []string{"region", "where"} {
			if out, err := exec.Command("/proc/self/exe", "signals", call).CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %w: %s", call, err, out)
			}
		}
		return nil
	})
}

// signalled makes the call in that process. The process has 8,192 mappings, all of which Linux locks in the call;
// meanwhile another thread sends it signals, at most 4,096.
func signalled(call string) error {
	runtime.LockOSThread()
	g, err := only()
	if err != nil {
		return err
	}
	f, err := gpudriver.Open(g.Path)
	if err != nil {
		return err
	}
	defer f.Close()
	b, err := anonymous(8192*page, false)
	if err != nil {
		return err
	}
	for pos := 0; pos < len(b); pos += 2 * page {
		if err := unix.Mprotect(b[pos:pos+page], unix.PROT_READ); err != nil {
			return os.NewSyscallError("mprotect", err)
		}
	}
	thread := unix.Gettid()
	var calls, sends, done atomic.Bool
	sent := make(chan error, 1)
	go func() {
		for sends.Store(true); !calls.Load(); {
		}
		var err error
		for i := 0; i < 4096 && !done.Load() && err == nil; i++ {
			err = unix.Tgkill(unix.Getpid(), thread, unix.SIGURG) // for which the Go runtime has a handler
		}
		sent <- err
	}()
	for !sends.Load() {
	}
	calls.Store(true)
	if call == "region" {
		_, err = f.OpenRegion(b[:page])
	} else {
		_, err = f.Where(b[:page])
	}
	done.Store(true)
	return errors.Join(err, os.NewSyscallError("tgkill", <-sent))
}
