// Package block is `vnic block`: a guest reads blocks of a remote device into its GPU's memory, and writes
// them from there, over NVMe/TCP or NBD (packages block/nvmetcp and block/nbd).
//
// The device is one that the user names, behind the gateway, or the command's own: Linux's NVMe/TCP target in
// a second guest, with a disk in the host's memory, or nbdkit for an in-process guest. The host proves the
// transfers. It compares the bytes read into GPU memory with the disk's content, if it knows the content.
// After a write to its own NVMe/TCP target it compares what is on the disk with the intended content, and with
// Options.Verify, on any device, what a second read brings back. The NIC counts in which kind of memory payload lay.
package block

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/report"
	"vnic.dev/vnic/internal/session"
	"vnic.dev/vnic/internal/transfer"
)

// ErrProof means that the operations ended, but failed, moved wrong bytes, or used another memory than they should.
var ErrProof = errors.New("the operations do not prove what they should")

// Do does the operations in each mode, and returns the report, also with an ErrProof, but with no other error.
func Do(ctx context.Context, o *Options, p *Peer) (*Report, error) {
	if err := p.claim(o.Broker); err != nil {
		return nil, err
	}
	return session.Do(ctx, &o.Options, func(s *session.Set, rep *Report) error {
		*rep = Report{Head: s.Head(), Server: p.text, Block: o.Block, Depth: o.Depth, Random: o.Random, Seed: o.Seed,
			size: o.Size}
		u := &use{Options: o, guest: s.Nodes[0], peer: p, rep: rep}
		server, err := p.start(ctx, s)
		if err != nil {
			return err
		}
		return session.InModes("", o.Modes, func(i int, mode string) error {
			if i > 0 && p.restore != nil {
				p.restore()
			}
			return u.mode(ctx, mode, server, uint64(i))
		})
	}, (*Report).check)
}

type use struct {
	*Options
	guest *session.Node
	peer  *Peer
	rep   *Report
}

func (u *use) mode(ctx context.Context, mode string, server netip.AddrPort, number uint64) error {
	if err := u.Begin(ctx, session.Step{Stage: "connect", Mode: mode}); err != nil {
		return err
	}
	t := &u.peer.target
	info, err := transfer.OpenStorage(ctx, u.guest.Ops, transfer.Storage{Protocol: t.protocol, Server: server,
		Name: t.name, Namespace: t.namespace, Local: u.guest.Config.Addr().Addr(), GPU: u.guest.GPU.ID(),
		Data: transfer.Area{Off: session.Pool, Bytes: u.room}, Pool: transfer.Area{Bytes: session.Pool},
		Queue: u.guest.Config.Queues()[0], Depth: u.Depth, ReadOnly: !u.Write,
		Timeout: limits.Silence.Unless(u.Timeout), Copy: mode == transfer.Copy})
	if err != nil {
		return fmt.Errorf("%s: %w", u.peer.text, err)
	}
	u.rep.Device = Device{Name: info.Name, Bytes: info.Size, BlockSize: info.BlockSize, MaxTransfer: info.MaxTransfer,
		// Package nbd reports each device that it opened without writes as read-only, also if the server does not.
		MaxDepth: info.MaxDepth, ReadOnly: info.ReadOnly && (u.Write || t.protocol != transfer.NBD)}
	if err := u.fits(&u.rep.Device); err != nil {
		return err
	}
	if err := u.Begin(ctx, session.Step{Stage: "transfer", Mode: mode}); err != nil {
		return err
	}
	written := session.Pattern(u.Seed + number + 1)
	for _, x := range []struct {
		what    string
		asked   bool
		content session.Content
		by      string
	}{
		{Read, u.Read, u.peer.content, u.peer.contentText},
		{Write, u.Write, written, u.peer.writtenText},
		{ReadBack, u.Write && u.Verify, written, "what was written"},
	} {
		if !x.asked {
			continue
		}
		r := Run{Mode: mode, What: x.what, Moved: session.Moved{By: x.by}}
		if err := u.all(ctx, &r, x.content); err != nil {
			return fmt.Errorf("%s: %w", x.what, err)
		}
		u.rep.Runs = append(u.rep.Runs, r)
	}
	return transfer.CloseStorage(ctx, u.guest.Ops)
}

// fits returns an error if the device is too small, does not take operations of this size or at these offsets, or is
// read-only and Write is set.
func (u *use) fits(d *Device) error {
	switch {
	case u.Offset > d.Bytes || u.Size > d.Bytes-u.Offset:
		return fmt.Errorf("%s: it has %d bytes, and %d from %d on are asked for: --size, --offset", u.peer.text, d.Bytes,
			u.Size, u.Offset)
	case d.BlockSize > 1 && (u.Block%d.BlockSize != 0 || u.Size%d.BlockSize != 0 || u.Offset%d.BlockSize != 0):
		return fmt.Errorf("%s: its blocks have %d bytes: --bs, --size and --offset are to be multiples", u.peer.text,
			d.BlockSize)
	case u.Block > d.MaxTransfer:
		return fmt.Errorf("--bs %d: %s takes %d bytes at most in an operation", u.Block, u.peer.text, d.MaxTransfer)
	case u.Write && d.ReadOnly:
		return fmt.Errorf("--write: %s is read-only", u.peer.text)
	}
	return nil
}

// nbdkitPattern makes the bytes of nbdkit's pattern plugin.
func nbdkitPattern(b []byte, pos uint64) {
	var word [8]byte
	for i := range b {
		k := pos + uint64(i)
		binary.BigEndian.PutUint64(word[:], k&^7)
		b[i] = word[k&7]
	}
}

// all does the operations of the kind r.What over Options.Size bytes, in rounds that fit into room.
func (u *use) all(ctx context.Context, r *Run, content session.Content) error {
	room := u.room / u.Block * u.Block
	if u.room >= u.Size {
		room = u.room
	}
	verified := true
	for done := uint64(0); done < u.Size; r.Rounds++ {
		n := min(u.Size-done, room)
		right, err := u.round(ctx, r, done, n, content)
		if err != nil {
			return err
		}
		verified = verified && right
		done += n
		u.Show(r.Mode+" "+r.What, done, u.Size)
	}
	if content != nil && (r.What != Write || u.peer.written != nil) {
		r.Verified = &verified
	} else {
		r.By = ""
	}
	r.Done(u.InProc)
	return nil
}

// round transfers the bytes [done, done+n) of the Options.Size bytes at Options.Offset. right is false with an error,
// if an operation failed, or if bytes are known to be wrong.
func (u *use) round(ctx context.Context, r *Run, done, n uint64, content session.Content) (right bool, err error) {
	g, pos := u.guest, u.Offset+done
	gen := content.From(pos)
	x := transfer.IO{Write: r.What == Write, Off: pos, Len: n, Size: u.Block, Depth: u.Depth}
	if u.Random {
		x.Random = &u.Seed
	}
	if x.Write {
		err = g.Fill(ctx, session.Pool, n, gen)
	} else {
		err = g.Poison(ctx, session.Pool, n, session.Poison)
	}
	if err != nil {
		return false, err
	}
	failed := r.Failed
	if err = r.Meter(ctx, g, x.Write, func() (session.Moved, transfer.Cost, error) {
		res, err := transfer.DoIO(ctx, g.Ops, x)
		r.Operations += res.Operations
		r.P50, r.P99, r.Max = max(r.P50, res.P50), max(r.P99, res.P99), max(r.Max, res.Max)
		r.Failed += res.Failed
		r.Errors = append(r.Errors, res.Errors...)
		r.Messages += res.Stats.Messages
		return session.Moved{Bytes: res.Bytes, Looked: res.Stats.Looked, HostCame: res.Stats.HostBytes}, res.Cost, err
	}); err != nil || r.Failed > failed {
		return false, err
	}
	if x.Write {
		return u.peer.written == nil || u.peer.written(pos, n, gen), nil
	}
	first, err := r.Compare(ctx, g, n, gen)
	if err == nil && first < n {
		r.Errors = append(r.Errors, fmt.Sprintf("byte %d of the device is not %s", pos+first, r.By))
	}
	return err == nil && first == n, err
}

// wrong lists failed operations, missing or wrong bytes, and payload in another memory than the mode requires.
func (r *Run) wrong(size uint64, p2p bool) (f report.Findings) {
	place := &r.RX
	if r.What == Write {
		place = &r.TX
	}
	f.If(r.Failed > 0, "%d operations failed: %s", r.Failed, strings.Join(r.Errors, "; "))
	f.If(r.Failed == 0 && r.Bytes != size, "%d bytes of %d", r.Bytes, size)
	f.If(r.Failed == 0 && r.Verified != nil && !*r.Verified, "%s", strings.Join(r.Errors, "; "))
	return append(f, r.Misplaced(r.Mode, p2p, place, r.What != Write && place.Host > 0)...)
}

// check returns an ErrProof if something is wrong in a Run.
func (r *Report) check() error {
	return report.Prove(ErrProof, r.Runs, func(x *Run) (string, report.Findings) {
		return "mode " + x.Mode + ", " + x.What, x.wrong(r.size, r.P2P)
	})
}

func sameBytes(got []byte, gen session.Content) bool {
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
