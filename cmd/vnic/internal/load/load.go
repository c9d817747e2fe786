package load

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"vnic.dev/vnic/cmd/vnic/internal/guests"
	"vnic.dev/vnic/cmd/vnic/internal/webfile"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/report"
	"vnic.dev/vnic/internal/transfer"
)

// ErrProof says that the file was loaded, but not as it must be.
var ErrProof = errors.New("what was loaded does not prove what it should")

// Do opens the file, loads it in each mode, and reports (guests.Do). s is the server, if it is the command's own. The
// report is also returned with an ErrProof.
func Do(ctx context.Context, o *Options, s *webfile.Server) (*Report, error) {
	return guests.Do(ctx, &o.Options, func(set *guests.Set, rep *Report) error {
		u := &use{Options: o, guest: set.Nodes[0], rep: rep}
		*rep = Report{Head: set.Head(), Format: o.Format, Connections: o.Connections, Range: o.Range, Seed: o.Seed}
		if s != nil {
			u.gen = s.Fill
		}
		return guests.InModes("", o.Modes, func(_ int, mode string) error { return u.mode(ctx, mode) })
	}, (*Report).check)
}

// use is a guest's use of a file.
type use struct {
	*Options
	guest *guests.Node
	gen   func(b []byte, pos uint64) // makes the file's content from pos on; nil: it is not known
	rep   *Report
}

// source is the file for the guest.
func (u *use) source(mode string) transfer.Source {
	gateway := u.GatewayAddr()
	s := transfer.Source{URL: u.URL, Header: u.Header, Local: u.guest.Config.Addr().Addr(), GPU: u.guest.GPU.ID(),
		Data: transfer.Area{Off: guests.Pool, Bytes: u.room}, Pool: transfer.Area{Bytes: guests.Pool},
		Queue: u.guest.Config.Queues()[0], Connections: u.Connections, RangeSize: u.Range,
		Timeout: limits.Silence.Unless(u.Timeout), Retry: limits.ServerBack.Unless(u.Retry),
		Copy: mode == transfer.Copy, Tensors: u.Format == Safetensors, Names: []netip.Addr{gateway}}
	hosts := []string{"localhost", "127.0.0.1", "::1"} // the guest's own loopback has no server
	if name := u.url.Hostname(); local(name) {
		hosts = append(hosts, name)
	}
	for _, name := range hosts {
		s.Hosts = append(s.Hosts, transfer.HostAddr{Name: name, Addr: gateway})
	}
	return s
}

// mode loads the file in a mode.
func (u *use) mode(ctx context.Context, mode string) error {
	if err := u.Begin(ctx, guests.Step{Stage: "connect", Mode: mode}); err != nil {
		return err
	}
	info, err := transfer.OpenSource(ctx, u.guest.Ops, u.source(mode))
	if err != nil {
		return err
	}
	u.rep.URL, u.rep.Size, u.rep.ETag = info.URL, info.Size, info.ETag
	if err := u.Begin(ctx, guests.Step{Stage: "transfer", Mode: mode}); err != nil {
		return err
	}
	r := Run{Mode: mode}
	switch {
	case u.Format == Records && (u.Skip >= info.Size || (info.Size-u.Skip)%u.Record != 0):
		err = fmt.Errorf("%s: its %d bytes, without the first %d, are no records of %d bytes: --record, --skip", info.URL,
			info.Size, u.Skip, u.Record)
	case u.Format == Records:
		err = u.records(ctx, &r, &info)
	case u.Format == Safetensors && info.Size-info.Data > u.room:
		err = fmt.Errorf("%s: its tensors have %d bytes, and the GPU has room for %d: a larger --gpu-memory", info.URL,
			info.Size-info.Data, u.room)
	default: // info.Data is 0 but for tensors
		u.rep.Tensors, u.rep.TensorCount = nil, info.Count
		for _, t := range info.Tensors {
			u.rep.Tensors = append(u.rep.Tensors, Tensor{t.Name, t.DType, t.Shape, guests.Pool + t.Begin, t.Len})
		}
		err = u.whole(ctx, &r, info.Data, info.Size)
	}
	if err != nil {
		return err
	}
	r.Done(u.InProc)
	u.rep.Runs = append(u.rep.Runs, r)
	return transfer.CloseSource(ctx, u.guest.Ops)
}

// whole loads [from, to) of the file, in rounds that fit GPU memory.
func (u *use) whole(ctx context.Context, r *Run, from, to uint64) error {
	for pos := from; pos < to; {
		n := min(to-pos, u.room)
		if err := u.load(ctx, r, transfer.LoadArgs{Off: pos, Len: n}); err != nil {
			return err
		}
		gen := func(b []byte, i uint64) { u.gen(b, pos+i) }
		if u.gen == nil {
			gen = nil
		}
		first, err := r.Compare(ctx, u.guest, n, gen)
		if err != nil {
			return err
		}
		r.differs(first < n, pos+first)
		pos += n
		u.Show(r.Mode, pos-from, to-from)
	}
	switch {
	case u.gen != nil:
		r.verified("what the server has")
	case u.SHA256 != "":
		if !strings.EqualFold(r.SHA256, u.SHA256) {
			r.Error = "sha256 " + r.SHA256
		}
		if strings.Contains(r.SHA256, ",") {
			r.Error = "the file does not fit GPU memory, so there is no digest of all of it: a larger --gpu-memory"
		}
		r.verified("--sha256")
	}
	return nil
}

// records makes a consumer take all batches. What is in GPU memory at the end are the last ones.
func (u *use) records(ctx context.Context, r *Run, info *transfer.SourceInfo) error {
	u.Show(r.Mode, 0, info.Size)
	if err := u.load(ctx, r, transfer.LoadArgs{Records: u.Record, Batch: u.Batch, Depth: u.Prefetch, Step: u.Step,
		Skip: u.Skip}); err != nil {
		return err
	}
	u.Show(r.Mode, info.Size, info.Size)
	if u.gen == nil {
		return nil
	}
	each, all, places := u.Record*u.Batch, info.Size-u.Skip, uint64(u.Prefetch)
	if r.Bytes != all {
		r.Error = fmt.Sprintf("%d bytes of %d", r.Bytes, all)
	}
	count := (all + each - 1) / each
	for i := count - min(count, places); i < count; i++ {
		n, pos := min(each, all-i*each), u.Skip+i*each
		first, err := u.guest.Differs(ctx, guests.Pool+i%places*each, n, func(b []byte, k uint64) { u.gen(b, pos+k) })
		if err != nil {
			return err
		}
		r.differs(first < n, pos+first)
	}
	r.verified(fmt.Sprintf("what the server has, of the last %d batches", min(count, places)))
	return nil
}

// differs keeps the first byte of the file that is not as the server has it.
func (r *Run) differs(wrong bool, pos uint64) {
	if wrong && r.Error == "" {
		r.Error = fmt.Sprintf("byte %d of the file is not what the server has", pos)
	}
}

// verified says with what all that came was compared: it is right if there is no Error.
func (r *Run) verified(by string) {
	right := r.Error == ""
	r.Verified, r.By = &right, by
}

// load makes the guest load something to memory that is poisoned, and adds what it cost.
func (u *use) load(ctx context.Context, r *Run, l transfer.LoadArgs) error {
	n := l.Len
	if l.Records > 0 {
		n = u.room
	}
	if err := u.guest.Poison(ctx, guests.Pool, n, guests.Poison); err != nil {
		return err
	}
	return r.Meter(ctx, u.guest, false, func() (guests.Moved, transfer.CPU, error) {
		res, err := transfer.Load(ctx, u.guest.Ops, l)
		r.Records += res.Consumer.Records
		r.Waited, r.First = res.Consumer.Share(), res.Consumer.First.Seconds()
		r.Requests += res.Stats.Requests
		r.Connections += res.Stats.Connections
		r.Resumed += res.Stats.Resumed
		return guests.Moved{Bytes: res.Bytes, Seconds: res.Seconds, Looked: res.Stats.Looked,
			HostCame: res.Stats.HostBytes, Retransmits: res.Retransmits}, res.CPU, err
	})
}

// wrong lists what of a run contradicts its mode.
func (r *Run) wrong(p2p bool) (f report.Findings) {
	f.If(r.Verified != nil && !*r.Verified, "%s", r.Error)
	return append(f, r.Misplaced(r.Mode, p2p, &r.RX, r.HostCame > 0 || r.RX.Host > 0 && r.Resumed == 0)...)
}

// check holds the report against what it must prove.
func (r *Report) check() error {
	return report.Prove(ErrProof, r.Runs, func(x *Run) (string, report.Findings) {
		return "mode " + x.Mode, x.wrong(r.P2P)
	})
}
