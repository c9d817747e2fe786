package testkit

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// WithoutOverride calls f in a thread without CAP_DAC_OVERRIDE: a file's mode decides whether f may write to
// it, even if the process runs as root. f must return: it must not call t.Fatal.
func WithoutOverride(t *testing.T, f func()) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var data [2]unix.CapUserData
		err := unix.Capget(&head, &data[0])
		if err == nil {
			data[0].Effective &^= 1 << unix.CAP_DAC_OVERRIDE
			if err = unix.Capset(&head, &data[0]); err == nil {
				f()
			}
		}
		done <- err
	}()
	OK(t, <-done)
}
