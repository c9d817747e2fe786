package stack_test

import (
	"errors"
	"net"
	"syscall"
	"testing"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/stacktest"
	"vnic.dev/vnic/internal/testkit"
)

func TestCloseIsNoEndOfStream(t *testing.T) {
	w := newRig(t, stacktest.Options{})
	for i := range 200 {
		_, c := w.connect(uint16(1000+i), false)
		frags, linear := make([]devmem.Frag, 1), make([]byte, 1)
		calls := []func() error{
			func() error { _, _, _, err := c.RecvDevmem(frags, linear, devmem.DontWait); return err },
			func() error { _, err := c.Write(linear); return err },
		}
		began, ended := make(chan struct{}, len(calls)), make(chan error, len(calls))
		for _, call := range calls {
			go func() {
				err := call()
				began <- struct{}{}
				for err == nil || errors.Is(err, syscall.EAGAIN) {
					err = call()
				}
				ended <- err
			}()
		}
		for range calls {
			<-began
		}
		testkit.OK(t, c.Close())
		for range calls {
			testkit.ErrorIs(t, <-ended, net.ErrClosed)
		}
	}
}
