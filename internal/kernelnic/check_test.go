package kernelnic

import (
	"bytes"
	"context"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/testkit"
)

type nicOfBuffers struct {
	control.Handler
	client     *control.Client
	dispatcher *control.Dispatcher
	registered int
}

func (h *nicOfBuffers) Generation() uint32 { return 1 }
func (h *nicOfBuffers) RegisterBuffer(control.Buffer) (uint32, error) {
	h.registered++
	return 1, nil
}

func (h *nicOfBuffers) UnregisterBuffer(uint32) error {
	h.registered--
	return nil
}

func (h *nicOfBuffers) Send(frame []byte) error {
	h.client.Receive(h.dispatcher.Handle(frame, make([]byte, control.MaxFrame)))
	return nil
}

// poisoner is a GPU whose jobs fill memory of the window w with their Seed, from p.wrong bytes after the right place
// on.
type poisoner struct {
	w     *Window
	wrong uint64
}

func (p *poisoner) RunJob(_ context.Context, j control.Job) (control.JobStatus, error) {
	for _, e := range p.w.extents {
		if j.Off >= e.GPUOff && j.Off < e.GPUOff+e.Size {
			off := e.Off + j.Off - e.GPUOff + p.wrong
			copy(p.w.page(off), bytes.Repeat([]byte{byte(j.Seed)}, int(j.Len)))
		}
	}
	return control.JobStatus{State: control.JobDone}, nil
}

// After a success checkWindow has cleared its marks and unregistered its buffers. It fails with EIO if a GPU writes
// elsewhere than the NIC reports.
func TestCheckOfAWindowClearsItsMarks(t *testing.T) {
	h := &nicOfBuffers{}
	h.client, h.dispatcher = control.NewClient(h, control.ClientOptions{}), control.NewDispatcher(h)
	defer h.client.Close()
	gpu := &poisoner{w: scattered(t)}
	n := &NIC{window: gpu.w, gpu: control.GPUInfo{ID: 2}, channel: &channel{ctl: h.client},
		engine: newEngine(gpu, gpu.w, ram())}
	testkit.OK(t, n.checkWindow(t.Context()))
	if i := bytes.IndexFunc(gpu.w.mem, func(r rune) bool { return r != 0 }); i >= 0 || h.registered != 0 {
		t.Errorf("byte %d of the window is %#x, %d buffers are registered", i, gpu.w.mem[i], h.registered)
	}
	gpu.wrong = 1
	testkit.ErrorIs(t, n.checkWindow(t.Context()), unix.EIO)
}
