package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"syscall"
	"time"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/undo"
	"vnic.dev/vnic/loader"
)

// Source is a file on a web server, and the parts of a guest's GPU memory for it.
type Source struct {
	URL         string        `json:"url"`
	Header      http.Header   `json:"header,omitempty"`
	Names       []netip.Addr  `json:"names,omitempty"` // DNS servers, asked over TCP
	Hosts       []HostAddr    `json:"hosts,omitempty"` // host names that are resolved without DNS
	Local       netip.Addr    `json:"local"`
	GPU         int           `json:"gpu"`
	Data        Area          `json:"data"` // where Load puts bytes of the file
	Pool        Area          `json:"pool"` // for received packets, unless Copy is set
	Queue       int           `json:"queue"`
	Connections int           `json:"connections"`
	RangeSize   uint64        `json:"range_size"`
	Timeout     time.Duration `json:"timeout"` // nanoseconds; 0: the loader's default
	Retry       time.Duration `json:"retry"`   // nanoseconds; 0: the loader's default
	Copy        bool          `json:"copy,omitempty"`
	Tensors     bool          `json:"tensors,omitempty"` // the file has the safetensors format
}

// HostAddr is the address of a host name.
type HostAddr struct {
	Name string     `json:"name"`
	Addr netip.Addr `json:"addr"`
}

// SourceInfo is a server's description of a file.
type SourceInfo struct {
	URL     string          `json:"url"` // after redirects
	Size    uint64          `json:"size"`
	ETag    string          `json:"etag,omitempty"`
	Tensors []loader.Tensor `json:"tensors,omitempty"` // if Source.Tensors: the first ones, as many as fit into a message
	Count   int             `json:"count,omitempty"`   // number of all tensors in the file
	Data    uint64          `json:"data,omitempty"`    // offset in the file where the tensors' data begins
}

// LoadArgs say which part of an open Source to read, how, and to where.
type LoadArgs struct {
	// If Records is not 0, it is the size of a record, in bytes, and Load reads records in batches. Otherwise Load
	// reads [Off, Off+Len) of the file. Both write to Source.Data from offset Mem on.
	Records uint64        `json:"records,omitempty"`
	Batch   uint64        `json:"batch,omitempty"` // records in a batch
	Depth   int           `json:"depth,omitempty"` // most batches in memory at a time
	Step    time.Duration `json:"step,omitempty"`  // how long the consumer works on a batch, in nanoseconds
	Skip    uint64        `json:"skip,omitempty"`  // bytes of the file before the first record

	Off uint64 `json:"off,omitempty"`
	Len uint64 `json:"len,omitempty"`
	Mem uint64 `json:"mem,omitempty"`
}

// LoadResult is the result of Load.
type LoadResult struct {
	Bytes    uint64              `json:"bytes"`
	Consumer loader.RecordsStats `json:"consumer"`
	Stats    loader.Stats        `json:"stats"`
	Cost
}

type source struct {
	*loader.Object
	data    devmem.Buffer
	tensors *loader.Safetensors
	undo    undo.Stack
}

// OpenSource registers the areas of GPU memory, and asks the server about the file. With Source.Tensors it also reads
// the list of tensors. After an error it has undone everything.
func (n *Node) OpenSource(ctx context.Context, s Source) (info SourceInfo, err error) {
	n.opening.Lock()
	defer n.opening.Unlock()
	if n.source != nil {
		return info, fmt.Errorf("open %s: there is a source already: %w", s.URL, syscall.EALREADY)
	}
	x := &source{}
	defer func() {
		if err != nil {
			err = errors.Join(err, x.undo.All())
		}
	}()
	buffers, err := n.areas(&x.undo, s.GPU, namedArea{"data", s.Data}, namedArea{"pool", s.Pool})
	if err != nil {
		return info, fmt.Errorf("open source: %w", err)
	}
	x.data = buffers[0]
	x.Object, err = loader.Open(ctx, s.URL, loader.Config{Device: n.dev, Memory: n.gpuMemory(), Queue: s.Queue,
		Pool: buffers[1], Copy: s.Copy, Local: s.Local, Resolve: n.resolver(&s), Connections: s.Connections,
		RangeSize: s.RangeSize, Header: s.Header, Timeout: s.Timeout, Retry: s.Retry})
	if err != nil {
		return info, err
	}
	x.undo.Add(x.Close)
	info = SourceInfo{URL: x.URL(), Size: x.Size(), ETag: x.ETag()}
	if s.Tensors {
		if x.tensors, err = x.Safetensors(ctx); err != nil {
			return info, err
		}
		info.Count, info.Data = len(x.tensors.Tensors), x.tensors.Data
		info.Tensors = listed(x.tensors.Tensors)
	}
	n.source = x
	return info, nil
}

// maxListed bounds the list of tensors in a message, in bytes as listed counts them: a line has at most 1 MiB
// (agent.MaxLine), and JSON encodes a byte of a name as at most six.
const maxListed = 128 << 10

func listed(list []loader.Tensor) []loader.Tensor {
	n := 0
	for i := range list {
		if n += len(list[i].Name) + 24*len(list[i].Shape) + 100; n > maxListed {
			return list[:i]
		}
	}
	return list
}

// resolver returns a function that resolves a host name by s.Hosts, else as an address, else by DNS over TCP.
func (n *Node) resolver(s *Source) func(ctx context.Context, host string) ([]netip.Addr, error) {
	names := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		err := error(syscall.EHOSTUNREACH)
		for _, a := range s.Names {
			var c devmem.Conn
			if c, err = n.dev.Dial(ctx, netip.AddrPortFrom(s.Local, 0), netip.AddrPortFrom(a, 53)); err == nil {
				return c, nil
			}
		}
		return nil, fmt.Errorf("server of names: %w", err)
	}}
	return func(ctx context.Context, host string) ([]netip.Addr, error) {
		for _, h := range s.Hosts {
			if h.Name == host {
				return []netip.Addr{h.Addr}, nil
			}
		}
		if a, err := netip.ParseAddr(host); err == nil {
			return []netip.Addr{a}, nil
		}
		return names.LookupNetIP(ctx, "ip", host)
	}
}

// Load reads the open Source, or a part of it, into the GPU's memory.
func (n *Node) Load(ctx context.Context, l LoadArgs) (r LoadResult, err error) {
	n.opening.Lock()
	s := n.source
	n.opening.Unlock()
	if s == nil {
		return r, fmt.Errorf("load: no source is open: %w", syscall.EINVAL)
	}
	before := s.Stats()
	err = n.measure(&r.Cost, func() error {
		if l.Records > 0 {
			return s.consume(ctx, &l, &r)
		}
		r.Bytes = l.Len
		return s.Fetch(ctx, s.data, loader.Pieces(loader.Piece{Off: l.Off, Len: l.Len, Mem: l.Mem}),
			func(loader.Piece) error { return nil })
	})
	r.Stats = since(s.Stats(), before)
	return r, err
}

// consume reads the file's records in batches as a training loop does.
func (s *source) consume(ctx context.Context, l *LoadArgs, r *LoadResult) error {
	batches, err := s.Records(ctx, loader.RecordsConfig{Buffer: s.data, Off: l.Mem, Skip: l.Skip, RecordSize: l.Records,
		Batch: l.Batch, Depth: l.Depth})
	if err != nil {
		return err
	}
	defer func() { _ = batches.Close() }()
	defer func() { r.Consumer = batches.Stats() }()
	for {
		b, err := batches.Next(ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		r.Bytes += b.Len
		if l.Step > 0 { // in place of a GPU's work on the batch
			select {
			case <-time.After(l.Step):
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		if err := batches.Release(); err != nil {
			return err
		}
	}
}

// CloseSource ends a running Load and closes the open Source, if any.
func (n *Node) CloseSource(context.Context) error {
	n.opening.Lock()
	defer n.opening.Unlock()
	s := n.source
	if s == nil {
		return nil
	}
	n.source = nil
	return s.undo.All()
}
