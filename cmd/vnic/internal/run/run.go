package run

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"

	"vnic.dev/vnic/control"
	"vnic.dev/vnic/gpumem"
	"vnic.dev/vnic/guest-images/transfer"
)

// Do makes the lab, transfers in each mode, and reports. Whatever happens, nothing of the lab is left when it returns.
// The report is also returned with an ErrProof, so that a user sees what was wrong.
func Do(ctx context.Context, o Options) (rep *Report, err error) {
	p, err := o.plan()
	if err != nil {
		return nil, err
	}
	images, err := prepareGuests(ctx, &o) // stage fetch
	if err != nil {
		return nil, err
	}
	if err := o.stage(ctx, "gpu-memory"); err != nil {
		return nil, err
	}
	l, err := newLab(&o)
	if err != nil {
		return nil, err
	}
	defer func() {
		if cerr := l.Close(); cerr != nil {
			err = errors.Join(err, fmt.Errorf("clearing up: %w", cerr))
		}
	}()
	if err := l.boot(ctx, images); err != nil {
		return nil, err
	}
	rep = &Report{Schema: 1, QEMU: l.info.qemu, Kernel: l.info.kernel, Accel: l.info.accel, Guest: "qemu", P2P: o.P2P,
		MTU: o.MTU, Family: o.Family, Loss: o.Loss, Seed: o.Seed, Untested: l.info.untested, BootSeconds: l.info.boot.Seconds()}
	if o.InProc {
		rep.Guest = "inproc"
	}
	for i, mode := range o.Modes {
		r, err := l.runMode(ctx, p, mode, uint64(i))
		if err != nil {
			return nil, fmt.Errorf("mode %s: %w", mode, err)
		}
		rep.Runs = append(rep.Runs, *r)
	}
	if len(rep.Runs) == 2 && rep.Runs[1].Rate() > 0 {
		rep.Ratio = rep.Runs[0].Rate() / rep.Runs[1].Rate()
	}
	return rep, rep.check(&o)
}

func (o *Options) stage(ctx context.Context, name string) error {
	if o.Stage != nil {
		o.Stage(name)
	}
	if o.Pause == name {
		<-ctx.Done()
	}
	return context.Cause(ctx)
}

// runMode transfers o.Size in one mode, in rounds that fit GPU memory.
func (l *lab) runMode(ctx context.Context, p plan, mode string, number uint64) (*Run, error) {
	seeds := rand.New(rand.NewPCG(l.opt.Seed, number)) // each (mode, round) has its own
	r := &Run{Mode: mode, SHA256Match: true, Seed: l.opt.Seed, Rounds: len(p.rounds)}
	if l.opt.Audit {
		r.Audit = &AuditCount{}
	}
	if l.info.cpu {
		r.GuestCPU, r.GuestCPUSeconds = &CPU{}, new(float64)
	}
	for i, n := range p.rounds {
		seed := seeds.Uint64()
		if err := l.round(ctx, p, r, n, seed, uint16(basePort+int(number)*1000+i%1000)); err != nil {
			return nil, fmt.Errorf("round %d of %d (seed %#x): %w", i+1, len(p.rounds), seed, err)
		}
	}
	return r, nil
}

// round is one transfer of n bytes, metered and verified.
func (l *lab) round(ctx context.Context, p plan, r *Run, n, seed uint64, port uint16) (err error) {
	a, b := l.ends[0], l.ends[1]
	from := netip.AddrPortFrom(a.addr(l.opt.Family).Addr(), port)
	to := netip.AddrPortFrom(b.addr(l.opt.Family).Addr(), port)
	send := transfer.Prepare{Mode: r.Mode, Send: true, GPU: a.gpu.ID(), Off: 0, Bytes: up(n), Len: n, Seed: seed, Local: from,
		Remote: to, StallSeconds: l.opt.StallSecs}
	recv := transfer.Prepare{Mode: r.Mode, GPU: b.gpu.ID(), Off: p.pool, Bytes: up(n), Len: n, Seed: ^seed, Local: to, Remote: from,
		PoolOff: 0, PoolBytes: p.pool, Queues: []int{1}, StallSeconds: l.opt.StallSecs}

	if err := l.opt.stage(ctx, "prepare"); err != nil {
		return err
	}
	defer func() { // also after an error: the next round, or the next mode, finds the guests as they were
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
		defer cancel()
		if ferr := errors.Join(a.guest.Finish(end), b.guest.Finish(end)); ferr != nil && err == nil {
			err = fmt.Errorf("finish: %w", ferr)
		}
	}()
	if err := both(ctx, func(ctx context.Context) error { return a.guest.Prepare(ctx, send) },
		func(ctx context.Context) error { return b.guest.Prepare(ctx, recv) }); err != nil {
		return fmt.Errorf("prepare: %w", err)
	}
	if err := l.poisoned(b, recv); err != nil {
		return err
	}
	meters, err := l.addMeters(from, to)
	if err != nil {
		return err
	}
	defer meters.remove()

	if err := l.opt.stage(ctx, "connect"); err != nil {
		return err
	}
	if err := b.guest.Listen(ctx); err != nil {
		return err
	}
	if err := both(ctx, a.guest.Connect, b.guest.Accept); err != nil {
		return err
	}
	if err := l.opt.stage(ctx, "transfer"); err != nil {
		return err
	}
	var ra, rb transfer.Result
	before := l.counters()
	start := time.Now()
	var took time.Duration
	done := make(chan struct{})
	go l.watch(done, meters, r, n)
	err = both(ctx, func(ctx context.Context) (err error) { ra, err = a.guest.Send(ctx); return err },
		func(ctx context.Context) (err error) {
			rb, err = b.guest.Receive(ctx)
			took = time.Since(start)
			return err
		})
	done <- struct{}{}
	if err != nil {
		return l.bothStates(ctx, err)
	}
	if err := l.opt.stage(ctx, "verify"); err != nil {
		return err
	}
	meters.settle(ctx, n)
	l.account(r, meters, before, ra, rb)
	r.Bytes += n
	r.Seconds += took.Seconds()
	if err := l.verify(r, b, recv.Off, n, seed); err != nil {
		return err
	}
	return l.audit(ctx, r, gpumem.Stream{Seed: seed, Bytes: n})
}

// both runs two ends at the same time; the first error cancels the other.
func both(ctx context.Context, f, g func(context.Context) error) error {
	eg, ctx := errgroup.WithContext(ctx)
	eg.Go(func() error { return f(ctx) })
	eg.Go(func() error { return g(ctx) })
	return eg.Wait()
}

// bothStates adds the TCP state of both ends to an error of a transfer.
func (l *lab) bothStates(ctx context.Context, err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return fmt.Errorf("%w\n  sender A:   %s\n  receiver B: %s", err, l.ends[0].guest.State(ctx), l.ends[1].guest.State(ctx))
}

// meters count the measured connection, and nothing else, on both NICs.
type meters struct {
	l  *lab
	id [2]uint32
}

func (l *lab) addMeters(from, to netip.AddrPort) (m *meters, err error) {
	m = &meters{l: l}
	if m.id[0], err = l.ends[0].port.AddMeter(control.Meter{Proto: 6, Local: from, Remote: to}); err != nil {
		return nil, err
	}
	if m.id[1], err = l.ends[1].port.AddMeter(control.Meter{Proto: 6, Local: to, Remote: from}); err != nil {
		_ = l.ends[0].port.DelMeter(m.id[0])
		return nil, err
	}
	return m, nil
}

func (m *meters) read() (tx, rx control.DirCounters, a, b control.MeterCounters) {
	a, _ = m.l.ends[0].port.ReadMeter(m.id[0])
	b, _ = m.l.ends[1].port.ReadMeter(m.id[1])
	return a.Tx, b.Rx, a, b
}

func (m *meters) remove() {
	_ = m.l.ends[0].port.DelMeter(m.id[0])
	_ = m.l.ends[1].port.DelMeter(m.id[1])
}

// settle waits until the sender's worker has counted what the receiver already has: it counts after it has delivered.
func (m *meters) settle(ctx context.Context, n uint64) {
	for end := time.Now().Add(time.Second); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(time.Millisecond) {
		tx, rx, _, _ := m.read()
		if payload(tx) >= n && payload(rx) >= n {
			return
		}
	}
}

func payload(d control.DirCounters) uint64 { return d.DeviceBytes + d.GPUFileBytes + d.HostBytes }

// watch reports progress by what the receiving NIC has written.
func (l *lab) watch(done <-chan struct{}, m *meters, r *Run, n uint64) {
	t := time.NewTicker(100 * time.Millisecond)
	defer t.Stop()
	for {
		_, rx, _, _ := m.read()
		if l.opt.Progress != nil {
			l.opt.Progress(r.Mode, r.Bytes+min(n, payload(rx)), l.opt.Size)
		}
		select {
		case <-done:
			return
		case <-t.C:
		}
	}
}

// totals are counters that are not the meters': of both ports, as they stand now.
type totals struct{ engine, drops uint64 }

func (l *lab) counters() (t totals) {
	for _, e := range l.ends {
		c, _ := e.port.PortCounters()
		t.engine += c.Engine.Gathered + c.Engine.ToGuest + c.Engine.FromGuest
		t.drops += c.Rx.Drops + c.Tx.Drops
		for _, n := range e.port.Link().Counters().Drops {
			t.drops += n
		}
	}
	return t
}

func (l *lab) account(r *Run, m *meters, before totals, ra, rb transfer.Result) {
	tx, rx, a, b := m.read()
	now := l.counters()
	r.TX.Device += tx.DeviceBytes
	r.TX.Host += tx.HostBytes + tx.GPUFileBytes
	r.RX.Device += rx.DeviceBytes
	r.RX.Host += rx.HostBytes + rx.GPUFileBytes
	r.PayloadBytesDevice, r.PayloadBytesHost = r.RX.Device, r.RX.Host
	r.HeaderBytes += a.Tx.HeaderBytes + a.Rx.HeaderBytes
	r.RetransmittedBytes += tx.RetransBytes
	r.BouncedBytes += tx.BouncedBytes + b.Rx.BouncedBytes
	r.CopyEngineBytes += now.engine - before.engine + tx.BouncedBytes + b.Rx.BouncedBytes
	r.DroppedPackets += now.drops - before.drops
	r.LinearBytes += rb.Linear
	r.Fragments += rb.Frags
	if r.GuestCPU != nil {
		c := ra.CPU.Add(rb.CPU)
		r.GuestCPU.User += max(0, c.User-c.Spin)
		r.GuestCPU.System += c.System
		r.GuestCPU.IRQ += c.IRQ
		*r.GuestCPUSeconds += c.Work()
	}
}

// check holds the report against what each mode must prove.
func (rep *Report) check(o *Options) error {
	var errs []error
	wrong := func(r *Run, format string, args ...any) {
		errs = append(errs, fmt.Errorf("mode %s: %s", r.Mode, fmt.Sprintf(format, args...)))
	}
	for i := range rep.Runs {
		r := &rep.Runs[i]
		if !r.SHA256Match {
			wrong(r, "the destination's digest is not the source's")
		}
		direct := r.Mode == transfer.Devmem && o.P2P
		switch {
		case direct && (r.TX.Host != 0 || r.RX.Host != 0):
			wrong(r, "payload in host memory: %d bytes sent, %d received", r.TX.Host, r.RX.Host)
		case direct && (r.TX.Device < r.Bytes || r.RX.Device < r.Bytes):
			wrong(r, "device memory saw %d bytes sent, %d received, of %d", r.TX.Device, r.RX.Device, r.Bytes)
		case !direct && (r.TX.Host < r.Bytes || r.RX.Host < r.Bytes):
			wrong(r, "host memory saw %d bytes sent, %d received, of %d: the counters do not see what they must", r.TX.Host, r.RX.Host, r.Bytes)
		}
		if direct && r.LinearBytes != 0 {
			wrong(r, "%d bytes came in host memory", r.LinearBytes)
		}
		if a := r.Audit; a != nil {
			hits := a.HitsSender + a.HitsReceiver
			if r.Mode == transfer.Devmem && hits != 0 {
				wrong(r, "audit: %d pieces of payload in guest RAM", hits)
			}
			if r.Mode == transfer.Copy && hits == 0 {
				wrong(r, "audit: no payload in guest RAM: the audit does not see what it must")
			}
		}
	}
	if len(errs) > 0 {
		return fmt.Errorf("%w: %w", ErrProof, errors.Join(errs...))
	}
	return nil
}

func hexSum(b []byte) string { return hex.EncodeToString(b) }
