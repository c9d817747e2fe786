// Package load is `vnic load`: a guest loads a file from a web server into its GPU's memory (package loader):
// the whole file, the tensors of a safetensors file, or records that a consumer takes in batches.
//
// The server is one that the user names, which guests reach through the gateway, or the command's own in this process,
// whose file the seed defines. The host compares the bytes in GPU memory with the own server's file: all bytes or, of
// records, the last batches. Of another server's file, other than records, it compares the SHA-256 if Options has one.
// The NIC counts in which memory payload lay.
package load

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/report"
	"vnic.dev/vnic/internal/session"
	"vnic.dev/vnic/internal/transfer"
	"vnic.dev/vnic/internal/webfile"
	"vnic.dev/vnic/loader"
)

// Options are the flags of `vnic load`. Without a URL the command starts a server.
type Options struct {
	session.Options
	transfer.Source
	transfer.LoadArgs
	Format string // Raw, Records or Safetensors; "": Safetensors if URL's path ends in .safetensors, else Raw
	Size   uint64 // of the own server's file, in bytes; approximate with Records and Safetensors
	SHA256 string // expected digest of the data, in hex; "": unknown

	url  *url.URL
	room uint64          // GPU memory for data, in bytes
	gen  session.Content // content of the own server's file; nil: another server
}

// Formats of files.
const (
	Raw         = "raw"
	Records     = "records"
	Safetensors = "safetensors"
)

// Defaults returns the options of the command without flags, but with Seed 0.
func Defaults() Options {
	o := Options{Options: session.Defaults(), Size: 64 << 20,
		Source: transfer.Source{Header: http.Header{}, Connections: 4, RangeSize: 1 << 20,
			Timeout: time.Duration(limits.Silence), Retry: time.Duration(limits.ServerBack)},
		LoadArgs: transfer.LoadArgs{Records: 64 << 10, Batch: 16, Depth: 4}}
	o.Guests, o.Gateway = 1, &lab.GatewayFlags{}
	return o
}

const (
	maxConnections = 64
	maxRange       = 1 << 30
	maxSize        = 1 << 40
	maxPrefetch    = 1 << 16
	maxHeader      = 16 << 10
)

// Complete sets the options that follow from others, and returns an error for invalid ones.
func (o *Options) Complete() error {
	if o.Format == "" {
		o.Format = Raw
		if path, _, _ := strings.Cut(o.URL, "?"); strings.HasSuffix(path, ".safetensors") {
			o.Format = Safetensors
		}
	}
	if err := cmp.Or(session.OneOf("--format", o.Format, Raw, Records, Safetensors),
		session.Bytes("--size", o.Size, maxSize),
		session.Number("--connections", o.Connections, 1, maxConnections), session.Bytes("--range", o.RangeSize, maxRange),
		session.Patience("--timeout", o.Timeout), session.Patience("--retry", o.Retry), session.Modes(o.Modes)); err != nil {
		return err
	}
	var lines strings.Builder
	_ = o.Header.Write(&lines)
	each, records := o.Records*o.Batch, o.Format == Records
	switch {
	case o.Step < 0 || o.Step > time.Hour:
		return fmt.Errorf("--step %v: up to 1h", o.Step)
	case o.SHA256 != "" && (len(o.SHA256) != 64 || strings.Trim(strings.ToLower(o.SHA256), "0123456789abcdef") != ""):
		return fmt.Errorf("--sha256 %s: not 64 hexadecimal digits", o.SHA256)
	case o.SHA256 != "" && records:
		return errors.New("--sha256 is of all that lands, and of records only the last batches are there at the end")
	case !records && (o.Step > 0 || o.Skip > 0):
		return fmt.Errorf("--step and --skip are of --format %s", Records)
	case lines.Len() > maxHeader:
		return fmt.Errorf("--header: %d bytes, %d at most", lines.Len(), maxHeader)
	case records && (o.Records == 0 || o.Batch == 0 || o.Depth < 1 || each/o.Records != o.Batch || each > maxSize ||
		o.Depth > maxPrefetch):
		return fmt.Errorf("--record %s, --batch %d, --prefetch %d: from 1 on, and no more than GPU memory has",
			lab.FormatBytes(o.Records), o.Batch, o.Depth)
	}
	if err := loader.CheckHeader(o.Header); err != nil {
		return fmt.Errorf("--header: %w", err)
	}
	return cmp.Or(o.parse(), o.fit())
}

// parse parses the URL. If its host is this machine's loopback, it lets guests reach the port, unless the user has set
// --host-ports or there is no gateway.
func (o *Options) parse() (err error) {
	if o.URL == "" {
		return nil
	}
	if o.url, err = url.Parse(o.URL); err != nil {
		return fmt.Errorf("%q is not a URL", o.URL)
	}
	switch {
	case o.url.Scheme == "https":
		return fmt.Errorf("%s: https: a TLS record cannot be decrypted in device memory here: use http", o.URL)
	case o.url.Scheme != "http" || o.url.Host == "":
		return fmt.Errorf("%s: http://HOST[:PORT]/PATH is wanted", o.URL)
	}
	if session.OnHost(o.url.Hostname()) && o.Gateway.HostPorts == "" && !o.Gateway.Off() {
		o.Gateway.HostPorts = cmp.Or(o.url.Port(), "80")
	}
	return nil
}

// Serve starts the command's own server, which the caller closes, and sets URL to it; nil: there is a URL already.
func (o *Options) Serve() (s *webfile.Server, err error) {
	if o.URL != "" {
		return nil, nil //nolint:nilnil // as documented
	}
	f := &webfile.File{Name: "data", Size: o.Size, Seed: o.Seed}
	switch o.Format {
	case Records: // whole records, and at least one
		f.Size = max(1, (o.Size-min(o.Size, o.Skip))/o.Records)*o.Records + o.Skip
	case Safetensors:
		f.Name = "model.safetensors"
		f.Head, f.Size = webfile.Model(o.Size)
	}
	if s, err = webfile.Serve(f, 2*maxConnections); err != nil {
		return nil, err
	}
	o.URL, o.gen = s.URL, f.Fill
	return s, o.parse()
}

// fit sets room and Window, and returns an error if the GPU has too little memory, or for invalid session.Options.
func (o *Options) fit() error {
	name, has, err := o.Only()
	if err != nil {
		return err
	}
	if has < session.Pool+1<<20 {
		return fmt.Errorf("guest %s can use %s of its GPU's memory, and %s are for pages alone: a larger --gpu-memory",
			name, lab.ShowBytes(has), lab.FormatBytes(session.Pool))
	}
	o.room = (has - session.Pool) &^ (devmem.PageSize - 1)
	need := o.Records * o.Batch * uint64(o.Depth)
	switch {
	case o.Format == Records && need > o.room:
		return fmt.Errorf("%d batches of %d records of %s: guest %s has room for %s: a larger --gpu-memory, or a smaller "+
			"--prefetch or --batch", o.Depth, o.Batch, lab.ShowBytes(o.Records), name, lab.FormatBytes(o.room))
	case o.Format == Records:
		o.room = session.Pages(need)
	case o.Format == Raw && o.URL == "":
		o.room = min(o.room, session.Pages(o.Size))
	}
	o.Window = session.Pool + o.room
	return o.Check()
}

// ParseHeader adds a line NAME: VALUE to h.
func ParseHeader(h http.Header, s string) error {
	name, value, ok := strings.Cut(s, ":")
	if name = strings.TrimSpace(name); !ok || name == "" || strings.ContainsAny(s, "\r\n") {
		return fmt.Errorf("%q: NAME: VALUE", s)
	}
	h.Add(name, strings.TrimSpace(value))
	return nil
}

// ErrProof means that the file was loaded, but the results contradict the proof.
var ErrProof = errors.New("what was loaded does not prove what it should")

// Do loads the file in each mode, and returns the report, also with an ErrProof.
func Do(ctx context.Context, o *Options) (*Report, error) {
	return session.Do(ctx, &o.Options, func(set *session.Set, rep *Report) error {
		*rep = Report{Head: set.Head(), Format: o.Format, Connections: o.Connections, Range: o.RangeSize, Seed: o.Seed}
		u := &use{o, set.Nodes[0], rep}
		return session.InModes("", o.Modes, func(_ int, mode string) error { return u.mode(ctx, mode) })
	}, (*Report).check)
}

type use struct {
	*Options
	guest *session.Node
	rep   *Report
}

func (u *use) source(mode string) transfer.Source {
	s, gateway, config := u.Source, u.GatewayAddr(), &u.guest.Config
	s.Local, s.GPU, s.Queue = config.Addr().Addr(), u.guest.GPU.ID(), config.Queues()[0]
	s.Data, s.Pool = transfer.Area{Off: session.Pool, Bytes: u.room}, transfer.Area{Bytes: session.Pool}
	s.Timeout, s.Retry = limits.Silence.Unless(u.Timeout), limits.ServerBack.Unless(u.Retry)
	s.Copy, s.Tensors, s.Names = mode == transfer.Copy, u.Format == Safetensors, []netip.Addr{gateway}
	for _, name := range []string{"localhost", "127.0.0.1", "::1", u.url.Hostname()} {
		if session.OnHost(name) { // the guest's own loopback has no server
			s.Hosts = append(s.Hosts, transfer.HostAddr{Name: name, Addr: gateway})
		}
	}
	return s
}

func (u *use) mode(ctx context.Context, mode string) error {
	if err := u.Begin(ctx, session.Step{Stage: "connect", Mode: mode}); err != nil {
		return err
	}
	info, err := transfer.OpenSource(ctx, u.guest.Ops, u.source(mode))
	if err != nil {
		return err
	}
	u.rep.URL, u.rep.Size, u.rep.ETag = info.URL, info.Size, info.ETag
	if err := u.Begin(ctx, session.Step{Stage: "transfer", Mode: mode}); err != nil {
		return err
	}
	r := Run{Mode: mode}
	switch {
	case u.Format == Records && (u.Skip >= info.Size || (info.Size-u.Skip)%u.Records != 0):
		err = fmt.Errorf("%s: its %d bytes, without the first %d, are no records of %d bytes: --record, --skip", info.URL,
			info.Size, u.Skip, u.Records)
	case u.Format == Records:
		err = u.records(ctx, &r, &info)
	case u.Format == Safetensors && info.Size-info.Data > u.room:
		err = fmt.Errorf("%s: its tensors have %d bytes, and the GPU has room for %d: a larger --gpu-memory", info.URL,
			info.Size-info.Data, u.room)
	default: // info.Data is 0 without tensors
		u.rep.Tensors, u.rep.TensorCount = nil, info.Count
		for _, t := range info.Tensors {
			u.rep.Tensors = append(u.rep.Tensors, Tensor{t.Name, t.DType, t.Shape, session.Pool + t.Begin, t.Len})
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

// whole loads [from, to) of the file, in rounds that fit GPU memory, and computes each round's digest. It compares the
// bytes if the content is known, else the digest if Options has one.
func (u *use) whole(ctx context.Context, r *Run, from, to uint64) error {
	for pos := from; pos < to; {
		n := min(to-pos, u.room)
		if err := u.load(ctx, r, n, transfer.LoadArgs{Off: pos, Len: n}); err != nil {
			return err
		}
		first, err := r.Compare(ctx, u.guest, n, u.gen.From(pos))
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
		if strings.Contains(r.SHA256, ",") {
			r.Error = "the file does not fit GPU memory, so there is no digest of all of it: a larger --gpu-memory"
		} else if !strings.EqualFold(r.SHA256, u.SHA256) {
			r.Error = "sha256 " + r.SHA256
		}
		r.verified("--sha256")
	}
	return nil
}

// records makes the guest's consumer take all batches. At the end the last Depth batches are in GPU memory,
// and are compared if the content is known.
func (u *use) records(ctx context.Context, r *Run, info *transfer.SourceInfo) error {
	u.Show(r.Mode, 0, info.Size)
	if err := u.load(ctx, r, u.room, u.LoadArgs); err != nil {
		return err
	}
	u.Show(r.Mode, info.Size, info.Size)
	if u.gen == nil {
		return nil
	}
	each, all, places := u.Records*u.Batch, info.Size-u.Skip, uint64(u.Depth)
	if r.Bytes != all {
		r.Error = fmt.Sprintf("%d bytes of %d", r.Bytes, all)
	}
	count := (all + each - 1) / each
	for i := count - min(count, places); i < count; i++ {
		n, pos := min(each, all-i*each), u.Skip+i*each
		first, err := u.guest.Differs(ctx, session.Pool+i%places*each, n, u.gen.From(pos))
		if err != nil {
			return err
		}
		r.differs(first < n, pos+first)
	}
	r.verified(fmt.Sprintf("what the server has, of the last %d batches", min(count, places)))
	return nil
}

func (r *Run) differs(wrong bool, pos uint64) {
	if wrong && r.Error == "" {
		r.Error = fmt.Sprintf("byte %d of the file is not what the server has", pos)
	}
}

// verified sets the comparison's result: no Error yet means equal. by names the other side of the comparison.
func (r *Run) verified(by string) {
	r.Verified, r.By = new(r.Error == ""), by
}

// load poisons n bytes of GPU memory, and makes the guest load into them.
func (u *use) load(ctx context.Context, r *Run, n uint64, l transfer.LoadArgs) error {
	if err := u.guest.Poison(ctx, session.Pool, n, session.Poison); err != nil {
		return err
	}
	return r.Meter(ctx, u.guest, false, func() (session.Moved, transfer.Cost, error) {
		res, err := transfer.Load(ctx, u.guest.Ops, l)
		r.Records += res.Consumer.Records
		r.Waited, r.First = res.Consumer.Share(), res.Consumer.First.Seconds()
		r.Requests += res.Stats.Requests
		r.Connections += res.Stats.Connections
		r.Resumed += res.Stats.Resumed
		return session.Moved{Bytes: res.Bytes, Looked: res.Stats.Looked, HostCame: res.Stats.HostBytes}, res.Cost, err
	})
}

// wrong lists what contradicts the proof.
func (r *Run) wrong(p2p bool) (f report.Findings) {
	f.If(r.Verified != nil && !*r.Verified, "%s", r.Error)
	return append(f, r.Misplaced(r.Mode, p2p, &r.RX, r.HostCame > 0 || r.RX.Host > 0 && r.Resumed == 0)...)
}

// check returns an ErrProof for results that contradict the proof.
func (r *Report) check() error {
	return report.Prove(ErrProof, r.Runs, func(x *Run) (string, report.Findings) {
		return "mode " + x.Mode, x.wrong(r.P2P)
	})
}
