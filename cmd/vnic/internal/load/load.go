package load

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"vnic.dev/vnic/cmd/vnic/internal/guests"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/report"
	"vnic.dev/vnic/internal/transfer"
)

// ErrProof says that the file was loaded, but not as it must be.
var ErrProof = errors.New("what was loaded does not prove what it should")

// Do opens the file, loads it in each mode, and reports. s is the server, if it is the command's own. Whatever happens,
// nothing of the lab is left when it returns. The report is also returned with an ErrProof. When ctx ends, its cause is
// returned.
func Do(ctx context.Context, o *Options, s *Server) (*Report, error) {
	var rep *Report
	err := guests.Run(ctx, &o.Options, func(set *guests.Set) error {
		u := &use{opt: o, set: set, guest: set.Nodes[0], rep: &Report{Schema: 1, Info: set.Info,
			NIC: set.Nodes[0].Port.Model.Name, P2P: set.Nodes[0].P2P, Format: o.Format, Connections: o.Connections,
			Range: o.Range, Seed: o.Seed}}
		if s != nil {
			u.file = s.file
		}
		rep = u.rep
		for _, mode := range o.Modes {
			if err := u.mode(ctx, mode); err != nil {
				return guests.InMode(o.Modes, mode, err)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return rep, rep.check()
}

// use is a guest's use of a file.
type use struct {
	opt   *Options
	set   *guests.Set
	guest *guests.Node
	file  *file // nil: nobody knows what it has
	rep   *Report
}

// dataOff is where data is in what the guest has of its GPU.
const dataOff = pool

// poison is what GPU memory has before something is loaded to it.
const poison = 0x5a

// source is the file for the guest.
func (u *use) source(mode string) transfer.Source {
	o, c := u.opt, u.guest.Config
	s := transfer.Source{URL: o.URL, Header: o.Header, Local: c.Addr().Addr(), GPU: u.guest.GPU.ID(),
		Data: transfer.Area{Off: dataOff, Bytes: o.room}, Pool: transfer.Area{Bytes: pool}, Queue: c.Queues()[0],
		Connections: o.Connections, RangeSize: o.Range, Timeout: limits.Silence.Unless(o.Timeout),
		Retry: limits.ServerBack.Unless(o.Retry), Copy: mode == transfer.Copy, Tensors: o.Format == Safetensors}
	v4, v6 := lab.GatewayAddrs()
	gateway := v4.Addr()
	if o.Family == 6 {
		gateway = v6.Addr()
	}
	s.Names = []netip.Addr{gateway}
	for _, name := range []string{"localhost", "127.0.0.1", "::1"} { // the guest's own are nobody's
		s.Hosts = append(s.Hosts, transfer.HostAddr{Name: name, Addr: gateway})
	}
	if name := o.url.Hostname(); local(name) {
		s.Hosts = append(s.Hosts, transfer.HostAddr{Name: name, Addr: gateway})
	}
	return s
}

// mode loads the file in a mode.
func (u *use) mode(ctx context.Context, mode string) error {
	o := u.opt
	if err := o.Begin(ctx, guests.Step{Stage: "connect", Mode: mode}); err != nil {
		return err
	}
	info, err := transfer.OpenSource(ctx, u.guest.Ops, u.source(mode))
	if err != nil {
		return err
	}
	u.rep.URL, u.rep.Size, u.rep.ETag = info.URL, info.Size, info.ETag
	if err := o.Begin(ctx, guests.Step{Stage: "transfer", Mode: mode}); err != nil {
		return err
	}
	r := Run{Mode: mode}
	cpu := 0.0
	switch o.Format {
	case Records:
		if o.Skip >= info.Size || (info.Size-o.Skip)%o.Record != 0 {
			return fmt.Errorf("%s: its %d bytes, without the first %d, are no records of %d bytes: --record, --skip", info.URL,
				info.Size, o.Skip, o.Record)
		}
		err = u.records(ctx, &r, &info, &cpu)
	case Safetensors:
		if need := info.Size - info.Data; need > o.room {
			return fmt.Errorf("%s: its tensors have %d bytes, and the GPU has room for %d: a larger --gpu-memory", info.URL,
				need, o.room)
		}
		u.rep.Tensors, u.rep.TensorCount = nil, info.Count
		for _, t := range info.Tensors {
			u.rep.Tensors = append(u.rep.Tensors, Tensor{t.Name, t.DType, t.Shape, dataOff + t.Begin, t.Len})
		}
		err = u.whole(ctx, &r, info.Data, info.Size, &cpu)
	default:
		err = u.whole(ctx, &r, 0, info.Size, &cpu)
	}
	if err != nil {
		return err
	}
	if !o.InProc && r.Bytes > 0 {
		cpu /= float64(r.Bytes) / 1e9
		r.CPUPerGB = &cpu
	}
	u.rep.Runs = append(u.rep.Runs, r)
	return transfer.CloseSource(ctx, u.guest.Ops)
}

// whole loads [from, to) of the file, in rounds that fit GPU memory.
func (u *use) whole(ctx context.Context, r *Run, from, to uint64, cpu *float64) error {
	right := true
	for pos := from; pos < to; {
		n := min(to-pos, u.opt.room)
		if err := u.guest.Poison(ctx, dataOff, n, poison); err != nil {
			return err
		}
		if err := u.load(ctx, r, transfer.LoadArgs{Off: pos, Len: n}, cpu); err != nil {
			return err
		}
		d, err := u.guest.SHA256(ctx, dataOff, n)
		if err != nil {
			return err
		}
		r.SHA256 = strings.TrimPrefix(r.SHA256+","+hex.EncodeToString(d[:]), ",")
		if u.file != nil {
			first, err := u.guest.Differs(ctx, dataOff, n, func(b []byte, i uint64) { u.file.gen(b, pos+i) })
			if err != nil {
				return err
			}
			if first < n && right {
				right, r.Error = false, fmt.Sprintf("byte %d of the file is not what the server has", pos+first)
			}
		}
		pos += n
		if u.opt.Progress != nil {
			u.opt.Progress(r.Mode, pos-from, to-from)
		}
	}
	switch {
	case u.file != nil:
		r.Verified, r.By = &right, "what the server has"
	case u.opt.SHA256 != "":
		if right = strings.EqualFold(r.SHA256, u.opt.SHA256); !right {
			r.Error = "sha256 " + r.SHA256
			if strings.Contains(r.SHA256, ",") {
				r.Error = "the file does not fit GPU memory, so there is no digest of all of it: a larger --gpu-memory"
			}
		}
		r.Verified, r.By = &right, "--sha256"
	}
	return nil
}

// records has a consumer take all batches. What is in GPU memory at the end are the last ones.
func (u *use) records(ctx context.Context, r *Run, info *transfer.SourceInfo, cpu *float64) error {
	o := u.opt
	if err := u.guest.Poison(ctx, dataOff, o.room, poison); err != nil {
		return err
	}
	if o.Progress != nil {
		o.Progress(r.Mode, 0, info.Size)
	}
	l := transfer.LoadArgs{Records: o.Record, Batch: o.Batch, Depth: o.Prefetch, Step: o.Step, Skip: o.Skip}
	if err := u.load(ctx, r, l, cpu); err != nil {
		return err
	}
	if o.Progress != nil {
		o.Progress(r.Mode, info.Size, info.Size)
	}
	if u.file == nil {
		return nil
	}
	each, all := o.Record*o.Batch, info.Size-o.Skip
	count := (all + each - 1) / each
	right := r.Bytes == all
	if !right {
		r.Error = fmt.Sprintf("%d bytes of %d", r.Bytes, all)
	}
	for i := count - min(count, uint64(o.Prefetch)); i < count; i++ {
		n, pos := min(each, all-i*each), o.Skip+i*each
		place := dataOff + i%uint64(o.Prefetch)*each
		first, err := u.guest.Differs(ctx, place, n, func(b []byte, k uint64) { u.file.gen(b, pos+k) })
		if err != nil {
			return err
		}
		if first < n && right {
			right, r.Error = false, fmt.Sprintf("byte %d of the file is not what the server has", pos+first)
		}
	}
	r.Verified, r.By = &right, fmt.Sprintf("what the server has, of the last %d batches", min(count, uint64(o.Prefetch)))
	return nil
}

// load has the guest load something, and adds what it cost.
func (u *use) load(ctx context.Context, r *Run, l transfer.LoadArgs, cpu *float64) error {
	var res transfer.LoadResult
	moved, err := u.guest.Meter(ctx, func() (sent, received uint64, err error) {
		res, err = transfer.Load(ctx, u.guest.Ops, l)
		return 0, res.Bytes, err
	})
	if err != nil {
		return err
	}
	r.Bytes += res.Bytes
	r.Seconds += res.Seconds
	r.Records += res.Consumer.Records
	r.Waited, r.First = res.Consumer.Share(), res.Consumer.First.Seconds()
	r.Looked += res.Stats.Looked
	r.HostCame += res.Stats.HostBytes
	r.Requests += res.Stats.Requests
	r.Connections += res.Stats.Connections
	r.Resumed += res.Stats.Resumed
	r.Retransmits += res.Retransmits
	r.TX.Merge(moved.TX)
	r.RX.Merge(moved.RX)
	*cpu += res.CPU.Work()
	return nil
}

// wrong lists what of a run contradicts its mode.
func (r *Run) wrong(p2p bool) (f report.Findings) {
	devmem, in := r.Mode == transfer.Devmem, &r.RX
	f.If(r.Verified != nil && !*r.Verified, "%s", r.Error)
	f.If(devmem && p2p && in.Device < r.Bytes, "%d bytes of payload, and device memory saw %d", r.Bytes, in.Device)
	f.If(devmem && p2p && (r.HostCame > 0 || in.Host > 0 && r.Resumed == 0), "%d bytes came to host memory", in.Host)
	f.If(devmem && !p2p && (in.Bounced < r.Bytes || in.Device > 0),
		"without peer-to-peer %d bytes were bounced, of %d, and %d lay in device memory", in.Bounced, r.Bytes, in.Device)
	f.If(!devmem && in.Device > 0, "%d bytes lay in device memory", in.Device)
	return f
}

// check holds the report against what it must prove.
func (r *Report) check() error {
	var f report.Findings
	for i := range r.Runs {
		f.Within("mode "+r.Runs[i].Mode, r.Runs[i].wrong(r.P2P))
	}
	return f.Err(ErrProof)
}
