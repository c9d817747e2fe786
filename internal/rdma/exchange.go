package rdma

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"syscall"
	"time"

	"vnic.dev/vnic/internal/limits"
)

// Bounds of an exchange.
const (
	maxReason = 256  // bytes of words that are not this end's own, or go to the peer
	maxLine   = 2048 // bytes of what one end says at once: a reason may be six times as long in JSON
)

// version of the exchange.
const version = 1

// ErrPeer is returned when the peer says what it should not, or that it cannot.
var ErrPeer = errors.New("rdma: the peer")

// Ends says what one end of a connection brings.
type Ends struct {
	Addr  netip.Addr // own, that packets come from
	MAC   [6]byte    // own
	MTU   uint16     // path MTU at most, bytes; the NIC's limit if 0
	Reads uint8      // READs under way at most, each way; the NIC's limit if 0
	Offer Remote     // memory that the peer may use, if any: MR.Remote
	// Timeout bounds all of the exchange, besides ctx; 30 s if 0.
	Timeout time.Duration
	// Path may change the path before the queue pair is connected: Timeout (16 unless it does, and more on a slow
	// machine), Retries (7), RNR (7:
	// without end), RNRTimer (12: 0.64 ms), DSCP (0), and MAC, if another than the peer is the next hop.
	Path func(p *Path)
}

// Peer is what an exchange came to.
type Peer struct {
	Path Path   // as the queue pair was connected
	MR   Remote // what the peer offers; its Key is 0 if nothing
}

// hello is the line that each end says first.
type hello struct {
	Version int        `json:"vnic-rdma"`
	QPN     uint32     `json:"qpn"`
	PSN     uint32     `json:"psn"` // of the first packet that it sends
	Addr    netip.Addr `json:"ip"`
	MAC     mac        `json:"mac"`
	MTU     uint16     `json:"mtu"`
	Reads   uint8      `json:"reads"` // that it answers at one time
	MR      *Remote    `json:"mr,omitempty"`
}

// verdict is the line that each end says when it has connected, or cannot.
type verdict struct {
	Ready bool   `json:"ready"`
	Error string `json:"error,omitempty"`
}

// mac is a MAC address, as text.
type mac [6]byte

func (m mac) MarshalText() ([]byte, error) { return []byte(net.HardwareAddr(m[:]).String()), nil }

func (m *mac) UnmarshalText(b []byte) error {
	a, err := net.ParseMAC(string(b))
	if err != nil || len(a) != len(m) {
		return fmt.Errorf("MAC %q: not six bytes", b)
	}
	copy(m[:], a)
	return nil
}

// check refuses what no queue pair could be connected with.
func (h *hello) check() error {
	switch {
	case h.Version != version:
		return fmt.Errorf("version %d of the exchange, this end has %d", h.Version, version)
	case h.QPN < 2 || h.QPN >= 1<<24:
		return fmt.Errorf("queue pair %d: not of 2 to 2^24-1", h.QPN)
	case h.PSN >= 1<<24:
		return fmt.Errorf("PSN %d: not of 24 bits", h.PSN)
	case !h.Addr.IsValid() || h.Addr.Is4In6() || h.Addr.Zone() != "" || h.Addr.IsUnspecified() || h.Addr.IsMulticast():
		return fmt.Errorf("address %v: not one of a host", h.Addr)
	case h.MAC == mac{} || h.MAC[0]&1 != 0:
		return fmt.Errorf("MAC %v: not one of a host", net.HardwareAddr(h.MAC[:]))
	case !validMTU(h.MTU):
		return fmt.Errorf("path MTU of %d bytes: not 256, 512, 1024, 2048 or 4096", h.MTU)
	case h.MR != nil && (h.MR.Key == 0 || h.MR.Len == 0 || h.MR.Len-1 > math.MaxUint64-h.MR.VA):
		return fmt.Errorf("memory of %d bytes at %#x by key %#x: there is none", h.MR.Len, h.MR.VA, h.MR.Key)
	}
	return nil
}

func validMTU(n uint16) bool { return slices.Contains([]uint16{256, 512, 1024, 2048, 4096}, n) }

// Exchange connects a queue pair with the peer's, which runs Exchange on the other end of conn: each says a line of
// JSON with what the other needs, connects, and says that it is ready; when Exchange returns both are, so that either
// may send. The smaller path MTU of the two is taken, and READs under way as many as the other end answers. conn is the
// caller's, and can be used for other things before and afterwards: no byte is read that is not the exchange's.
//
// An end that has all it wanted keeps its queue pair until the other end says, on conn, that it has its answers, too:
// packets that are lost are asked for again, and from a queue pair that is closed nobody gets an answer.
//
// After an error the queue pair is of no more use, and conn is in the middle of something: both are to be closed.
// ErrPeer: the peer broke the rules, or has said why it cannot.
func Exchange(ctx context.Context, conn net.Conn, qp *QP, e Ends) (Peer, error) {
	if e.Timeout == 0 {
		e.Timeout = limits.Exchange.Here()
	}
	ctx, cancel := context.WithTimeoutCause(ctx, e.Timeout, fmt.Errorf("rdma: the exchange with the peer took more than "+
		"%v: %w", e.Timeout, syscall.ETIMEDOUT))
	defer cancel()
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		_ = conn.SetDeadline(time.Unix(1, 0)) // wakes who reads or writes
	})
	p, err := exchange(ctx, conn, qp, &e)
	if !stop() {
		<-stopped
		if err == nil {
			err = conn.SetDeadline(time.Time{}) // too late: it is done
		}
	}
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w (%w)", context.Cause(ctx), err)
	}
	return p, err
}

func exchange(ctx context.Context, conn net.Conn, qp *QP, e *Ends) (Peer, error) {
	ours, err := e.hello(qp)
	if err != nil {
		return Peer{}, err
	}
	var theirs hello
	var p Peer
	err = swap(conn, ours, &theirs, func() error { return theirs.fits(&ours) })
	if err == nil {
		p, err = e.connect(ctx, qp, &ours, &theirs)
	} else if !errors.Is(err, ErrPeer) {
		return Peer{}, err // nobody is there to be told
	}
	var peer verdict
	if err != nil {
		_ = conn.SetDeadline(time.Now().Add(limits.LastWords.Here()))
		_ = swap(conn, verdict{Error: cut(err.Error())}, &peer, nil) // its own is of no interest
		return Peer{}, err
	}
	if err := swap(conn, verdict{Ready: true}, &peer, nil); err != nil {
		return Peer{}, err
	}
	if !peer.Ready || peer.Error != "" {
		return Peer{}, fmt.Errorf("%w could not connect its queue pair, and says %q: %w", ErrPeer, cut(peer.Error),
			syscall.ECONNREFUSED)
	}
	return p, nil
}

// fits refuses what this end cannot connect with.
func (h *hello) fits(ours *hello) error {
	err := h.check()
	if err == nil && ours.Addr.Is4() != h.Addr.Is4() {
		err = fmt.Errorf("the address is %v, this end's %v: two families", h.Addr, ours.Addr)
	}
	if err != nil {
		err = fmt.Errorf("%w says what cannot be: %w: %w", ErrPeer, err, syscall.EPROTO)
	}
	return err
}

// hello is what this end says.
func (e *Ends) hello(qp *QP) (hello, error) {
	limits := &qp.pd.d.Limits
	var psn [4]byte
	_, _ = rand.Read(psn[:]) // never fails
	h := hello{Version: version, QPN: qp.Number, PSN: binary.LittleEndian.Uint32(psn[:]) >> 8, Addr: e.Addr.Unmap(),
		MAC: e.MAC, MTU: e.MTU, Reads: e.Reads}
	if h.MTU == 0 {
		h.MTU = limits.MTU
	}
	if most := uint8(min(limits.Reads, math.MaxUint8)); h.Reads == 0 || h.Reads > most {
		h.Reads = most
	}
	if e.Offer != (Remote{}) {
		h.MR = &e.Offer
	}
	if err := h.check(); err != nil {
		return h, fmt.Errorf("rdma: this end: %w: %w", err, syscall.EINVAL)
	}
	if h.MTU > limits.MTU {
		return h, fmt.Errorf("rdma: path MTU of %d bytes, the NIC has up to %d: %w", h.MTU, limits.MTU, syscall.EINVAL)
	}
	return h, nil
}

// connect connects the queue pair with what both ends said.
func (e *Ends) connect(ctx context.Context, qp *QP, ours, theirs *hello) (Peer, error) {
	p := Path{QPN: qp.Number, RemoteQPN: theirs.QPN, SendPSN: ours.PSN, RecvPSN: theirs.PSN, Local: ours.Addr,
		Remote: theirs.Addr, MAC: theirs.MAC, MTU: min(ours.MTU, theirs.MTU), Timeout: 16 + uint8(limits.Doublings()),
		Retries: 7, RNR: 7, RNRTimer: 12,
		Reads: min(ours.Reads, theirs.Reads), ReadDepth: ours.Reads}
	if e.Path != nil {
		e.Path(&p)
	}
	peer := Peer{Path: p}
	if theirs.MR != nil {
		peer.MR = *theirs.MR
	}
	return peer, qp.Connect(ctx, p)
}

// swap says a line and hears the peer's, at the same time: neither end need have room for what it has not read. check,
// if there is one, may refuse the peer's.
func swap(conn net.Conn, ours, theirs any, check func() error) error {
	line, err := json.Marshal(ours)
	if err != nil {
		return err
	}
	said := make(chan error, 1)
	go func() {
		_, err := conn.Write(append(line, '\n'))
		said <- err
	}()
	err = hear(conn, theirs)
	if err == nil && check != nil {
		err = check()
	}
	if err != nil {
		// Nobody may read what we say: the writer is not waited for longer than it takes to stop it.
		_ = conn.SetWriteDeadline(time.Now().Add(limits.LastWords.Here()))
	}
	wrote := <-said
	if err == nil && wrote != nil {
		err = fmt.Errorf("rdma: to the peer: %w", wrote)
	}
	return err
}

// hear reads a line of JSON, and not a byte more.
func hear(conn io.Reader, v any) error {
	line := make([]byte, 0, maxLine)
	for {
		b := line[len(line) : len(line)+1]
		if _, err := io.ReadFull(conn, b); err != nil {
			return fmt.Errorf("rdma: from the peer: %w", err)
		}
		if b[0] == '\n' {
			break
		}
		if line = line[:len(line)+1]; len(line) == maxLine {
			return fmt.Errorf("%w says a line of more than %d bytes: %w", ErrPeer, maxLine-1, syscall.EPROTO)
		}
	}
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	err := d.Decode(v)
	if err == nil && d.InputOffset() != int64(len(bytes.TrimRight(line, " \t\r"))) {
		err = errors.New("there is more behind it")
	}
	if err != nil {
		return fmt.Errorf("%w says %s, which is not this exchange: %w: %w", ErrPeer, cut(strconv.Quote(string(line))), err,
			syscall.EPROTO)
	}
	return nil
}

// cut shortens words to what fits in an error.
func cut(s string) string { return s[:min(len(s), maxReason)] }

// Dial connects to the address by TCP and connects the queue pair over that, see Exchange. The connection is open
// afterwards, for what else the ends have to say.
func Dial(ctx context.Context, address string, qp *QP, e Ends) (net.Conn, Peer, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, Peer{}, err
	}
	return over(ctx, conn, qp, e)
}

// Accept takes one connection of l, and is else as Dial. l's Close ends the wait; ctx is only of the exchange.
func Accept(ctx context.Context, l net.Listener, qp *QP, e Ends) (net.Conn, Peer, error) {
	conn, err := l.Accept()
	if err != nil {
		return nil, Peer{}, err
	}
	return over(ctx, conn, qp, e)
}

func over(ctx context.Context, conn net.Conn, qp *QP, e Ends) (net.Conn, Peer, error) {
	p, err := Exchange(ctx, conn, qp, e)
	if err != nil {
		_ = conn.Close()
		return nil, Peer{}, err
	}
	return conn, p, nil
}
