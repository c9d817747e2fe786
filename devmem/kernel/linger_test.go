package kernel

import (
	"io"
	"syscall"
	"testing"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/testkit"
)

// fillPeer makes a connection to a peer that does not read, sends until the kernel holds unsent data or 8 MiB are sent,
// and closes the connection. It returns the peer's end, and how many bytes it sent.
func fillPeer(t *testing.T, td *testDevice, tx devmem.Binding) (h io.ReadCloser, sent int) {
	t.Helper()
	c, h := pair(t, td)
	testkit.OK(t, c.s.on(func(fd int) error {
		return syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_SNDBUF, 1<<20)
	}))
	for sent < 8<<20 && !full(t, c) {
		n := testkit.Must(c.SendDevmem(tx.ID(), []devmem.Range{{Off: 0, Len: 64 << 10}}))(t)
		sent += n
	}
	testkit.OK(t, c.Close())
	return h, sent
}

// full reports whether the kernel holds data that it has not sent yet.
func full(t *testing.T, c *Conn) bool {
	info, ok := c.info()
	if !ok {
		t.Fatal("no tcp_info")
	}
	return info.Notsent_bytes > 0
}

func TestClosedConnectionSendsOn(t *testing.T) {
	td := newTestDevice(t)
	tx := bindTX(t, td)
	h, sent := fillPeer(t, td, tx)
	if st := td.Stats(); st.Bindings[0].Sends == 0 {
		t.Errorf("%+v", st.Bindings)
	}
	if b, err := io.ReadAll(h); len(b) != sent || err != nil {
		t.Errorf("%d of %d bytes, %v", len(b), sent, err)
	}
	for td.Stats().Bindings[0].Sends > 0 { // another goroutine reads completions
		continue
	}
}

func TestDeviceCloseAbortsWhatLingers(t *testing.T) {
	td := newTestDevice(t)
	tx := bindTX(t, td)
	h, sent := fillPeer(t, td, tx)
	testkit.OK(t, td.Close())
	b, err := io.ReadAll(h)
	if len(b) >= sent {
		t.Errorf("%d bytes of %d came", len(b), sent)
	}
	wantErr(t, "read", err, syscall.ECONNRESET)
	<-tx.Done()
}
