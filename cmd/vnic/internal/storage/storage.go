package storage

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"vnic.dev/vnic/cmd/vnic/internal/guests"
	"vnic.dev/vnic/gpumem"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/report"
	"vnic.dev/vnic/internal/transfer"
)

// ErrProof says that the operations ended, but not as they must.
var ErrProof = errors.New("the operations do not prove what they should")

// Do opens the device, does the operations in each mode, and reports. Whatever happens, nothing of the lab is left when
// it returns. The report is also returned with an ErrProof. When ctx ends, its cause is returned.
func Do(ctx context.Context, o *Options, p *Peer) (*Report, error) {
	if err := p.claim(o.Broker); err != nil {
		return nil, err
	}
	var rep *Report
	err := guests.Run(ctx, &o.Options, func(s *guests.Set) error {
		rep = &Report{Schema: 1, Info: s.Info, NIC: s.Nodes[0].Port.Model.Name, P2P: s.Nodes[0].P2P, Block: o.Block,
			Depth: o.Depth, Random: o.Random, Seed: o.Seed}
		return (&use{opt: o, set: s, guest: s.Nodes[0], peer: p, rep: rep}).run(ctx)
	})
	if err != nil {
		return nil, err
	}
	return rep, rep.check()
}

// use is a guest's use of a device.
type use struct {
	opt   *Options
	set   *guests.Set
	guest *guests.Node
	peer  *Peer
	rep   *Report
}

// where data is in what the guest has of its GPU.
const dataOff = pool

func (u *use) run(ctx context.Context) error {
	server, err := u.peer.start(ctx, u.set)
	if err != nil {
		return err
	}
	u.rep.Server = u.peer.text
	for i, mode := range u.opt.Modes {
		if i > 0 && u.peer.restore != nil { // the mode before has written
			u.peer.restore()
		}
		if err := u.mode(ctx, mode, server, uint64(i)); err != nil {
			return guests.InMode(u.opt.Modes, mode, err)
		}
	}
	return nil
}

// mode does all that is asked for in a mode.
func (u *use) mode(ctx context.Context, mode string, server netip.AddrPort, number uint64) error {
	o := u.opt
	if err := o.Begin(ctx, guests.Step{Stage: "connect", Mode: mode}); err != nil {
		return err
	}
	c := u.guest.Config
	t := &u.peer.target
	info, err := transfer.OpenStorage(ctx, u.guest.Ops, transfer.Storage{Protocol: t.protocol, Server: server,
		Name:      t.name,
		Namespace: t.namespace, Local: c.Addr().Addr(), GPU: u.guest.GPU.ID(),
		Data: transfer.Area{Off: dataOff, Bytes: o.room}, Pool: transfer.Area{Bytes: pool}, Queue: c.Queues()[0],
		Depth: o.Depth, ReadOnly: !o.Write, Timeout: limits.Silence.Unless(o.Timeout),
		Copy: mode == transfer.Copy})
	if err != nil {
		return fmt.Errorf("%s: %w", u.peer.text, err)
	}
	u.rep.Device = Device{Name: info.Name, Bytes: info.Size, BlockSize: info.BlockSize, MaxTransfer: info.MaxTransfer,
		MaxDepth: info.MaxDepth, ReadOnly: info.ReadOnly}
	if !o.Write && t.protocol == transfer.NBD { // it was opened for reads alone
		u.rep.Device.ReadOnly = false
	}
	if err := u.fits(&u.rep.Device); err != nil {
		return err
	}
	if err := o.Begin(ctx, guests.Step{Stage: "transfer", Mode: mode}); err != nil {
		return err
	}
	seed := o.Seed + number + 1 // what is written is another one's in each mode
	steps := []struct {
		what    string
		asked   bool
		content func(b []byte, pos uint64) // nil: not known
		by      string
	}{
		{Read, o.Read, u.peer.content, u.peer.contentText},
		{Write, o.Write, pattern(seed), u.peer.writtenText},
		{ReadBack, o.Write && o.Verify, pattern(seed), "what was written"},
	}
	for _, x := range steps {
		if !x.asked {
			continue
		}
		r := Run{Mode: mode, What: x.what, By: x.by}
		if err := u.all(ctx, &r, x.content); err != nil {
			return fmt.Errorf("%s: %w", x.what, err)
		}
		u.rep.Runs = append(u.rep.Runs, r)
	}
	return transfer.CloseStorage(ctx, u.guest.Ops)
}

// fits is an error if the device lacks what the options ask for.
func (u *use) fits(d *Device) error {
	o := u.opt
	switch {
	case o.Offset > d.Bytes || o.Size > d.Bytes-o.Offset:
		return fmt.Errorf("%s: it has %d bytes, and %d from %d on are asked for: --size, --offset", u.peer.text, d.Bytes,
			o.Size, o.Offset)
	case d.BlockSize > 1 && (o.Block%d.BlockSize != 0 || o.Size%d.BlockSize != 0 || o.Offset%d.BlockSize != 0):
		return fmt.Errorf("%s: its blocks have %d bytes: --bs, --size and --offset are to be multiples", u.peer.text,
			d.BlockSize)
	case o.Block > d.MaxTransfer:
		return fmt.Errorf("--bs %d: %s takes %d bytes at most in an operation", o.Block, u.peer.text, d.MaxTransfer)
	case o.Write && d.ReadOnly:
		return fmt.Errorf("--write: %s is read-only", u.peer.text)
	}
	return nil
}

// pattern is what a seed says of the device, byte by byte.
func pattern(seed uint64) func(b []byte, pos uint64) {
	return func(b []byte, pos uint64) { gpumem.FillAt(b, seed, pos) }
}

// nbdkitPattern is nbdkit's: each 8 bytes are their own offset, big endian.
func nbdkitPattern(b []byte, pos uint64) {
	var word [8]byte
	for i := range b {
		k := pos + uint64(i)
		binary.BigEndian.PutUint64(word[:], k&^7)
		b[i] = word[k&7]
	}
}

// poison is what GPU memory has before something is read to it.
const poison = 0x5a

// all does operations over all that is asked for, in rounds that fit GPU memory.
func (u *use) all(ctx context.Context, r *Run, content func(b []byte, pos uint64)) error {
	o := u.opt
	room := o.room / o.Block * o.Block
	if o.room >= o.Size {
		room = o.room
	}
	verified, cpu := true, 0.0
	for done := uint64(0); done < o.Size; {
		n := min(o.Size-done, room)
		right, err := u.round(ctx, r, done, n, content, &cpu)
		if err != nil {
			return err
		}
		verified = verified && right
		done += n
		r.Rounds++
		if o.Progress != nil {
			o.Progress(r.Mode+" "+r.What, done, o.Size)
		}
	}
	if content != nil && (r.What != Write || u.peer.written != nil) {
		r.Verified = &verified
	} else {
		r.By = ""
	}
	if !o.InProc && r.Bytes > 0 {
		cpu /= float64(r.Bytes) / 1e9
		r.CPUPerGB = &cpu
	}
	return nil
}

// round transfers bytes [done, done+n), and reports whether all of them are right.
func (u *use) round(ctx context.Context, r *Run, done, n uint64, content func(b []byte, pos uint64), cpu *float64) (
	right bool, err error) {
	o, g := u.opt, u.guest
	pos := o.Offset + done
	here := func(b []byte, i uint64) { content(b, pos+i) }
	if r.What == Write {
		err = g.Fill(ctx, dataOff, n, here)
	} else {
		err = g.Poison(ctx, dataOff, n, poison)
	}
	if err != nil {
		return false, err
	}
	x := transfer.IO{Write: r.What == Write, Off: pos, Len: n, Size: o.Block, Depth: o.Depth}
	if o.Random {
		x.Random = &o.Seed
	}
	var res transfer.IOResult
	moved, err := g.Meter(ctx, func() (sent, received uint64, err error) {
		res, err = transfer.DoIO(ctx, g.Ops, x)
		if x.Write {
			return res.Bytes, 0, err
		}
		return 0, res.Bytes, err
	})
	if err != nil {
		return false, err
	}
	r.add(&res, &moved)
	*cpu += res.CPU.Work()
	switch {
	case res.Failed > 0:
		return false, nil
	case r.What == Write && u.peer.written != nil: // the server's own view of it
		return u.peer.written(pos, n, here), nil
	case r.What == Write:
		return true, nil
	}
	d, err := g.SHA256(ctx, dataOff, n)
	if err != nil {
		return false, err
	}
	r.SHA256 = strings.TrimPrefix(r.SHA256+","+hex.EncodeToString(d[:]), ",")
	if content == nil {
		return true, nil
	}
	first, err := g.Differs(ctx, dataOff, n, here)
	if err != nil {
		return false, err
	}
	if first < n {
		r.Errors = append(r.Errors, fmt.Sprintf("byte %d of the device is not %s", pos+first, r.By))
	}
	return first == n, nil
}

func (r *Run) add(x *transfer.IOResult, t *guests.Traffic) {
	r.Operations += x.Operations
	r.Bytes += x.Bytes
	r.Seconds += x.Seconds
	r.P50, r.P99, r.Max = max(r.P50, x.P50), max(r.P99, x.P99), max(r.Max, x.Max)
	r.Failed += x.Failed
	r.Errors = append(r.Errors, x.Errors...)
	r.Messages += x.Stats.Messages
	r.Looked += x.Stats.Looked
	r.HostCame += x.Stats.HostBytes
	r.Retransmits += x.Retransmits
	r.TX.Merge(t.TX)
	r.RX.Merge(t.RX)
}

// wrong lists what of a run contradicts its mode.
func (r *Run) wrong(size uint64, p2p bool) (f report.Findings) {
	devmem, in := r.Mode == transfer.Devmem, &r.RX
	if r.What == Write {
		in = &r.TX
	}
	f.If(r.Failed > 0, "%d operations failed: %s", r.Failed, strings.Join(r.Errors, "; "))
	f.If(r.Failed == 0 && r.Bytes != size, "%d bytes of %d", r.Bytes, size)
	f.If(r.Failed == 0 && r.Verified != nil && !*r.Verified, "%s", strings.Join(r.Errors, "; "))
	f.If(devmem && p2p && in.Device < r.Bytes, "%d bytes of payload, and device memory saw %d", r.Bytes, in.Device)
	f.If(devmem && p2p && r.What != Write && in.Host > 0, "%d bytes came to host memory", in.Host)
	f.If(devmem && !p2p && (in.Bounced < r.Bytes || in.Device > 0),
		"without peer-to-peer %d bytes were bounced, of %d, and %d lay in device memory", in.Bounced, r.Bytes, in.Device)
	f.If(!devmem && in.Device > 0, "%d bytes lay in device memory", in.Device)
	return f
}

// check holds the report against what it must prove.
func (r *Report) check() error {
	var f report.Findings
	for i := range r.Runs {
		x := &r.Runs[i]
		f.Within("mode "+x.Mode+", "+x.What, x.wrong(x.Bytes, r.P2P))
	}
	return f.Err(ErrProof)
}

// sameBytes compares bytes with what gen makes.
func sameBytes(got []byte, gen func(b []byte, i uint64)) bool {
	want := make([]byte, 1<<20)
	for i := 0; i < len(got); i += len(want) {
		k := min(len(got)-i, len(want))
		gen(want[:k], uint64(i))
		if !bytes.Equal(got[i:i+k], want[:k]) {
			return false
		}
	}
	return true
}
