package badinput

import (
	"errors"
	"io"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/fusetest"
	"vnic.dev/vnic/internal/machine/machinetest"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/vfiotest"
	"vnic.dev/vnic/vhostuser"
)

// kept is how many descriptors a connection may leave open (dma.Space.Discard), plus those in a message.
const kept = 64 + 16

// onFiles has the rows that need their own mounts.
var onFiles = []row{
	{descriptor, messages, "files whose file system, in user space, is silent", "refused, then the port serves nobody",
		func(w *world) {
			fds := w.silentFiles()
			a := w.attacker.connect()
			n := 0
			for n < reps && errors.Is(a.front.AddMemory(fds[n%len(fds)], 0, userAt, fusetest.Size, 0), vhostuser.ErrRefused) {
				n++
			}
			if n > kept {
				w.t.Errorf("%d are refused, and it is still served", n)
			}
			w.servesNobody()
		}, onFile},
	{descriptor, vfio, "files whose file system, in user space, is silent", "refused, then the port serves nobody",
		func(w *world) {
			fds := w.silentFiles()
			c := w.vfio()
			n := 0
			for e := (*vfiotest.Error)(nil); n < reps; n++ {
				if err := c.MapRange(1<<40, fusetest.Size, fds[n%len(fds)], 0, true); !errors.As(err, &e) {
					break
				}
			}
			if n > kept {
				w.t.Errorf("%d are refused, and it is still served", n)
			}
			w.servesNobody()
		}, onFile},
}

var onFile = bound{memory: few.memory, peak: few.peak, cpu: few.cpu, lines: few.lines, left: kept, stall: few.stall}

// Invariant: cmd/vnic: What a frontend or a guest sends costs no more than the table of bad inputs says.
func TestBadFiles(t *testing.T) {
	if testing.Short() {
		t.Skip("runs vnic")
	}
	if os.Getenv(programEnv) == "" { // the process that fusetest.Run starts inherits the variable
		t.Setenv(programEnv, machinetest.Program(t, "vnic.dev/vnic/cmd/vnic"))
	}
	fusetest.Run(t, func(t *testing.T) {
		for _, model := range []string{"virtio", "gve"} {
			t.Run(model, func(t *testing.T) { try(t, model, onFiles) })
		}
	})
}

// silentFiles opens files of a FUSE, and of an overlay above it, whose server no longer answers.
func (w *world) silentFiles() (fds []int) {
	w.t.Helper()
	fs := fusetest.Mount(w.t)
	fds = []int{fs.File(fs.Dir), fs.File(fs.Overlay())}
	fs.Silence()
	return fds
}

func (w *world) servesNobody() {
	w.t.Helper()
	for range 50 {
		c := w.s.dial(w.attacker.port)
		_, _ = c.Write([]byte{0})
		testkit.OK(w.t, c.SetReadDeadline(time.Now().Add(testkit.Patience)))
		// A reset comes if vnic has not read the byte.
		if _, err := c.Read(make([]byte, 1)); err != io.EOF && !errors.Is(err, unix.ECONNRESET) {
			w.t.Errorf("the connection is not ended: %v", err)
		}
		_ = c.Close()
	}
}
