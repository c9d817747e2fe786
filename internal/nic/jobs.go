package nic

import (
	"context"
	"sync"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/gpumem"
	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/wire"
)

// SubmitJob implements control.Handler.
func (p *Port) SubmitJob(j control.Job) (uint64, error) {
	return p.engine.Submit(gpumem.Job{Op: gpumem.Op(j.Op), GPU: int(j.GPU), Off: j.Off, Len: j.Len, Seed: j.Seed,
		Stream: j.Stream, Table: j.Table, TableInGPU: j.TableInGPU, Entries: j.Entries})
}

// PollJob implements control.Handler.
func (p *Port) PollJob(id uint64) (control.JobStatus, error) {
	s, err := p.engine.Poll(id)
	return jobStatus(s), err
}

// CancelJob implements control.Handler.
func (p *Port) CancelJob(id uint64) (control.JobStatus, error) {
	s, err := p.engine.Cancel(id)
	return jobStatus(s), err
}

func jobStatus(s gpumem.Status) control.JobStatus {
	c := control.JobStatus{ID: s.ID, State: control.JobRunning, Errno: uint16(s.Errno), Entry: s.Entry, Bytes: s.Bytes,
		Sum: s.Sum}
	if s.Done {
		c.State = control.JobDone
	}
	return c
}

// notifier is the memory, under mu, in which Port.notice makes notices: control frames to the driver that answer no
// request.
type notifier struct {
	mu     sync.Mutex
	copier *dma.Copier
	frame  []byte
	pkt    wire.Packet
}

func (p *Port) jobDone(s gpumem.Status) {
	c := jobStatus(s)
	if s.Err != nil {
		p.conf.Log.Debug("job failed", "port", p.conf.Name, "job", s.ID, "err", s.Err)
	}
	p.notice(func(frame []byte) []byte { return p.dispatcher.NotifyJob(frame, p.conf.MAC, &c) })
}

func (p *Port) notice(f func(frame []byte) []byte) {
	p.notify.mu.Lock()
	defer p.notify.mu.Unlock()
	ownFrame(&p.notify.pkt, f(p.notify.frame[:0]))
	p.putOwn(p.notify.copier, &p.notify.pkt)
}

// Digest calls gpumem.Engine.DigestIdle of the port's engine.
func (p *Port) Digest(ctx context.Context, gpu int, extents []gpumem.Extent, hurry <-chan struct{}) ([32]byte, error) {
	return p.engine.DigestIdle(ctx, gpu, extents, hurry)
}
