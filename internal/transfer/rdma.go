package transfer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/kernelnic"
	"vnic.dev/vnic/internal/rdma"
)

// RDMA is a guest's end of queue pairs by which one guest's NIC accesses the other guest's memory (package
// rdma).
type RDMA struct {
	Offer   bool           `json:"offer,omitempty"` // the peer's NIC accesses this end's memory; else vice versa
	Read    bool           `json:"read,omitempty"`  // the accessing NIC reads; else it writes. Equal at both ends
	Both    bool           `json:"both,omitempty"`  // the accessing NIC may read and write. Equal at both ends
	Memory  string         `json:"memory"`          // of this end: MemoryGPU, MemoryRAM or MemoryODP
	GPU     int            `json:"gpu"`
	Data    Area           `json:"data"`   // in the GPU's memory; of MemoryODP only the size counts
	Local   netip.AddrPort `json:"local"`  // of the TCP connection that connects queue pairs
	Remote  netip.AddrPort `json:"remote"` // where the offering end listens; not used there
	QPs     int            `json:"qps"`
	Depth   int            `json:"depth"`              // most work requests in flight per queue pair
	PathMTU uint16         `json:"path_mtu,omitempty"` // at most; 0: the largest that both NICs support
	Spare   bool           `json:"spare,omitempty"`    // a further queue pair, for RDMAMove.Spare
	// Owner puts memory of kind MemoryODP into another process. This end then also has as much pinned GPU memory, at the
	// offsets that follow.
	Owner bool `json:"owner,omitempty"`
}

// RDMAInfo is the result of OpenRDMA.
type RDMAInfo struct {
	// Window is how many bytes this end's memory regions hold at a time. With MemoryRAM the caller moves the data in
	// steps that fit, with StageRDMA at both ends.
	Window uint64 `json:"window"`
}

// RDMAPath is the path of connected queue pairs.
type RDMAPath struct {
	MTU uint16 `json:"mtu"` // bytes
}

// RDMAMove is a move of [Off, Off+Len) of the data, by work requests of at most Block bytes. Byte x of the data is byte
// x modulo RDMAInfo.Window of the memory regions.
type RDMAMove struct {
	Off   uint64 `json:"off"`
	Len   uint64 `json:"len"`
	Block uint32 `json:"block"`

	Back bool   `json:"back,omitempty"` // opposite to RDMA.Read's direction; needs RDMA.Both
	At   uint64 `json:"at,omitempty"`   // added to Off for this end's memory only

	Spare bool `json:"spare,omitempty"` // only on the queue pair that RDMA.Spare adds
}

// RDMAResult is the result of MoveRDMA.
type RDMAResult struct {
	Requests uint64  `json:"requests"`
	Bytes    uint64  `json:"bytes"`
	Seconds  float64 `json:"seconds"`
}

// RDMAStage is a part of the data that an engine copies from the GPU to guest RAM, or back.
type RDMAStage struct {
	Off  uint64 `json:"off"`
	Len  uint64 `json:"len"`
	Back bool   `json:"back,omitempty"` // from RAM to the GPU
}

// port is the NIC of a Node, as RDMA uses it.
type port struct {
	control *control.Client
	mac     [6]byte
	// register registers [off, off+size) of the guest's GPU memory, until release is called.
	register func(gpu int, off, size uint64) (list []kernelnic.Registered, release func() error, err error)
}

func newPort(c *control.Client, mac net.HardwareAddr) port {
	return port{control: c, mac: [6]byte(mac), register: func(gpu int, off, size uint64) ([]kernelnic.Registered,
		func() error, error) {
		id, err := c.RegisterBuffer(context.Background(), uint16(gpu), off, size)
		if err != nil {
			return nil, nil, err
		}
		release := func() error { return kernelnic.Unregister(context.Background(), c, id) }
		return []kernelnic.Registered{{Buffer: id, Size: size}}, release, nil
	}}
}

type rdmaEnd struct {
	conf     RDMA
	node     *Node
	dev      *rdma.Device
	qps      []*rdma.QP
	memory   *regions
	listener devmem.Listener // at the offering end; else nil

	closed context.Context
	end    context.CancelFunc

	busy   sync.Mutex // one ConnectRDMA, MoveRDMA or StageRDMA at a time; CloseRDMA waits for it
	conn   devmem.Conn
	remote []rdma.Remote // the peer's memory regions, in the order of the data; nil at the offering end
}

// Limits of RDMA.QPs and RDMA.Depth.
const (
	MaxRDMAQPs   = 64
	MaxRDMADepth = 1024
)

// OpenRDMA makes memory regions and queue pairs, and listens if this end offers memory. After an error it has closed
// what it made. EALREADY: the Node's RDMA is open.
func (n *Node) OpenRDMA(_ context.Context, r RDMA) (info RDMAInfo, err error) {
	n.opening.Lock()
	defer n.opening.Unlock()
	switch {
	case n.rdma != nil:
		return info, fmt.Errorf("open RDMA: it is open already: %w", syscall.EALREADY)
	case r.QPs < 1 || r.QPs > MaxRDMAQPs || r.Depth < 1 || r.Depth > MaxRDMADepth:
		return info, fmt.Errorf("open RDMA: %d queue pairs with %d work requests each: 1 to %d, 1 to %d: %w", r.QPs, r.Depth,
			MaxRDMAQPs, MaxRDMADepth, syscall.EINVAL)
	case n.port.control == nil:
		return info, fmt.Errorf("open RDMA: this NIC has no control channel: %w", syscall.EOPNOTSUPP)
	}
	e := &rdmaEnd{conf: r, node: n}
	e.closed, e.end = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("open RDMA: %w", err), e.close())
		}
	}()
	if e.dev, err = rdma.Open(n.port.control); err != nil {
		return info, err
	}
	pd, err := e.dev.AllocPD()
	if err != nil {
		return info, err
	}
	if e.memory, err = n.regions(e.dev, pd, &r); err != nil {
		return info, err
	}
	qps := r.QPs
	if r.Spare {
		qps++
	}
	for range qps {
		cq, err := e.dev.NewCQ(r.Depth)
		if err != nil {
			return info, err
		}
		qp, err := pd.NewQP(rdma.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSend: r.Depth})
		if err != nil {
			return info, err
		}
		e.qps = append(e.qps, qp)
	}
	if r.Offer {
		if e.listener, err = n.dev.Listen(r.Local); err != nil {
			return info, fmt.Errorf("listen on %v: %w", r.Local, err)
		}
	}
	n.rdma = e
	return RDMAInfo{Window: e.memory.size}, nil
}

func (n *Node) rdmaOf(what string) (*rdmaEnd, error) {
	n.opening.Lock()
	defer n.opening.Unlock()
	if n.rdma == nil {
		return nil, fmt.Errorf("%s: no RDMA is open: %w", what, syscall.EINVAL)
	}
	return n.rdma, nil
}

var errRDMAClosed = fmt.Errorf("RDMA was closed: %w", syscall.ECANCELED)

// begin locks e.busy for a call, and returns a context that CloseRDMA ends. The caller calls the returned function
// at the call's end.
func (e *rdmaEnd) begin(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(e.closed, func() { cancel(errRDMAClosed) })
	e.busy.Lock()
	return ctx, func() {
		e.busy.Unlock()
		stop()
		cancel(nil)
	}
}

// ConnectRDMA connects all queue pairs to the peer's, while the peer runs ConnectRDMA too. After an error the caller
// closes the RDMA.
func (n *Node) ConnectRDMA(ctx context.Context) (path RDMAPath, err error) {
	e, err := n.rdmaOf("connect RDMA")
	if err != nil {
		return path, err
	}
	ctx, end := e.begin(ctx)
	defer end()
	if e.conn != nil {
		return path, fmt.Errorf("connect RDMA: %w", syscall.EISCONN)
	}
	if path, err = e.connect(ctx); err != nil {
		return path, fmt.Errorf("connect RDMA: %w", because(ctx, err))
	}
	return path, nil
}

func (e *rdmaEnd) connect(ctx context.Context) (path RDMAPath, err error) {
	if e.conf.Offer {
		stop := context.AfterFunc(ctx, func() { _ = e.listener.Close() })
		defer stop()
		e.conn, err = e.listener.AcceptConn()
	} else {
		e.conn, err = e.node.dev.Dial(ctx, e.conf.Local, e.conf.Remote)
	}
	if err != nil {
		e.conn = nil
		return path, err
	}
	stop := context.AfterFunc(ctx, func() { abort(e.conn) })
	defer stop()
	for _, qp := range e.qps {
		ends := rdma.Ends{Addr: e.conf.Local.Addr(), MAC: e.node.port.mac, MTU: e.conf.PathMTU}
		if e.conf.Both { // an answer may wait up to limits.Page for a page: eight tries of 1.07 s, times Slow, suffice
			ends.Path = func(p *rdma.Path) { p.Timeout += 2 }
		}
		peer, err := rdma.Exchange(ctx, e.conn, qp, ends)
		if err != nil {
			return path, err
		}
		path.MTU = peer.Path.MTU
	}
	// An exchange has room for one memory region, but GPU memory in several extents needs several: the offering end sends
	// a list behind the exchanges.
	if !e.conf.Offer {
		if err := json.NewDecoder(io.LimitReader(e.conn, maxOffer)).Decode(&e.remote); err != nil {
			return path, fmt.Errorf("what the peer offers: %w", err)
		}
		return path, nil
	}
	var offer []rdma.Remote
	for _, mr := range e.memory.mrs {
		offer = append(offer, mr.Remote())
	}
	return path, json.NewEncoder(e.conn).Encode(offer)
}

// maxOffer bounds the peer's list of memory regions, in bytes.
const maxOffer = 1 << 20

// MoveRDMA moves bytes between this end's memory and the peer's. EINVAL: this end offers memory or is not connected, or
// m is not possible.
func (n *Node) MoveRDMA(ctx context.Context, m RDMAMove) (res RDMAResult, err error) {
	e, err := n.rdmaOf("move")
	if err != nil {
		return res, err
	}
	ctx, end := e.begin(ctx)
	defer end()
	size := e.memory.size
	off := (m.At + m.Off) % size
	switch {
	case e.conf.Offer || e.remote == nil:
		return res, fmt.Errorf("move: this end offers memory, or is not connected: %w", syscall.EINVAL)
	case m.Len == 0 || m.Block == 0 || m.Len > size-off:
		return res, fmt.Errorf("move [%#x, +%#x) by %d bytes, where memory regions hold %d: %w", m.Off, m.Len, m.Block, size,
			syscall.EINVAL)
	}
	qps := e.qps[:e.conf.QPs]
	if m.Spare {
		qps = e.qps[e.conf.QPs:]
	}
	if len(qps) == 0 {
		return res, fmt.Errorf("move: there is no spare queue pair: %w", syscall.EINVAL)
	}
	blocks := (m.Len + uint64(m.Block) - 1) / uint64(m.Block)
	counts := make([]rdma.Counts, len(qps))
	start := time.Now()
	eg, ctx := errgroup.WithContext(ctx)
	for i, qp := range qps { // about equal shares
		from := uint64(i) * blocks / uint64(len(qps)) * uint64(m.Block)
		to := min(m.Len, uint64(i+1)*blocks/uint64(len(qps))*uint64(m.Block))
		eg.Go(func() error { return e.share(ctx, qp, &m, off+from, to-from, &counts[i]) })
	}
	err = eg.Wait()
	res.Seconds = time.Since(start).Seconds()
	for _, c := range counts {
		res.Requests += c.Posted
		res.Bytes += c.Bytes
	}
	if err != nil {
		err = fmt.Errorf("move after %d of %d bytes: %w", res.Bytes, m.Len, because(ctx, err))
	}
	return res, err
}

// share moves n bytes on a queue pair, at offset off of this end's memory regions and off-m.At of the peer's. It makes
// a transfer for each part that lies in one memory region at both ends.
func (e *rdmaEnd) share(ctx context.Context, qp *rdma.QP, m *RDMAMove, off, n uint64, sum *rdma.Counts) error {
	transfer := rdma.Put
	if e.conf.Read != m.Back {
		transfer = rdma.Get
	}
	for n > 0 {
		mr, here, k := locate(e.memory.mrs, func(r *rdma.MR) uint64 { return r.Len }, off)
		remote, there, l := locate(e.remote, func(r rdma.Remote) uint64 { return r.Len }, off-m.At)
		if k = min(k, l, n); k == 0 {
			return fmt.Errorf("the peer offers %d bytes, and not %d: %w", off, off+n, syscall.EFAULT)
		}
		part, err := remote.Part(there, k)
		if err != nil {
			return err
		}
		c, err := transfer(ctx, qp, mr.Part(here, k), part, rdma.TransferOptions{Size: m.Block, Window: e.conf.Depth})
		sum.Posted, sum.Bytes = sum.Posted+c.Posted, sum.Bytes+c.Bytes
		if err != nil {
			return err
		}
		off, n = off+k, n-k
	}
	return nil
}

// StageRDMA makes an engine copy a part of the data between the GPU and this end's MemoryRAM. With other memory it does
// nothing.
func (n *Node) StageRDMA(ctx context.Context, s RDMAStage) error {
	e, err := n.rdmaOf("stage")
	if err != nil {
		return err
	}
	ctx, end := e.begin(ctx)
	defer end()
	if e.memory.stage == nil {
		return nil
	}
	if err := e.memory.stage(ctx, s); err != nil {
		return fmt.Errorf("stage [%#x, +%#x): %w", s.Off, s.Len, because(ctx, err))
	}
	return nil
}

// CloseRDMA ends running calls, and closes queue pairs and memory regions, if any.
func (n *Node) CloseRDMA(context.Context) error {
	n.opening.Lock()
	defer n.opening.Unlock()
	e := n.rdma
	if e == nil {
		return nil
	}
	n.rdma = nil
	return e.close()
}

func (e *rdmaEnd) close() error {
	e.end()
	var errs []error
	if e.listener != nil {
		errs = append(errs, ignoreClosed(e.listener.Close()))
	}
	e.busy.Lock() // wait for running calls
	defer e.busy.Unlock()
	if e.conn != nil {
		_ = e.conn.Close()
	}
	if e.dev != nil {
		errs = append(errs, e.dev.Close())
	}
	if e.memory != nil {
		errs = append(errs, e.memory.release())
	}
	return errors.Join(errs...)
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// CPUTime returns the guest's CPU time since boot; zero: unknown.
func (n *Node) CPUTime(context.Context) (CPU, error) {
	if n.cpu == nil {
		return CPU{}, nil
	}
	return n.cpu(), nil
}
