package rdma

import (
	"bytes"
	"cmp"
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
	maxReason = 256  // bytes of the peer's text in an error, or of a reason in a line
	maxLine   = 2048 // bytes of a line, its newline included: in JSON a reason may be six times as long
)

const version = 1

// ErrPeer is the error if the peer breaks the protocol, or reports that it could not connect.
var ErrPeer = errors.New("rdma: the peer")

// Ends configures this end of a connection.
type Ends struct {
	Addr  netip.Addr // this end's, the source of packets
	MAC   [6]byte
	MTU   uint16 // maximum of the path MTU, in bytes; the NIC's limit if 0
	Reads uint8  // maximum of READs in progress, in each direction; the NIC's limit if 0 or above that
	Offer Remote // memory that the peer may use, from MR.Remote; zero: none
	// Timeout is for the whole Exchange, in addition to ctx; if it is 0, 30 s, or more on a slow machine.
	Timeout time.Duration
	// Path may change the path before the queue pair is connected; it may be nil. Defaults: Timeout 16 (more on a
	// slow machine), Retries 7, RNR 7 (no limit), RNRTimer 12 (0.64 ms), DSCP 0.
	Path func(p *Path)
}

// Peer is the result of an exchange.
type Peer struct {
	Path Path
	MR   Remote // offered by the peer; its Key is 0 if there is none
}

// hello is the first line that each end sends.
type hello struct {
	Version int        `json:"vnic-rdma"`
	QPN     uint32     `json:"qpn"`
	PSN     uint32     `json:"psn"` // of the first packet of this end's requests
	Addr    netip.Addr `json:"ip"`
	MAC     mac        `json:"mac"`
	MTU     uint16     `json:"mtu"`
	Reads   uint8      `json:"reads"` // that this end answers at one time
	MR      *Remote    `json:"mr,omitempty"`
}

// verdict is the second line of an end, which sends it when it has connected its queue pair, or could not.
type verdict struct {
	Ready bool   `json:"ready"`
	Error string `json:"error,omitempty"`
}

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

// check returns an error if h is of another version, or has an impossible value.
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

// Exchange connects a queue pair with the queue pair of a peer that runs Exchange on the other end of conn: each end
// sends two lines of JSON. When Exchange returns without an error, either end may send. Unless Ends.Path changes the
// path, its MTU is the smaller of the two ends' MTUs, and an end has no more READs in progress than its peer answers.
// conn stays the caller's, and may be used for other data afterwards.
//
// An end that has received all its data must keep its queue pair until the peer reports, on conn, that the peer
// has all answers too: the peer requests lost packets again, and a closed queue pair does not answer.
//
// After an error close both the queue pair and conn. ErrPeer: the peer broke the protocol, or reported why it
// could not connect.
func Exchange(ctx context.Context, conn net.Conn, qp *QP, e Ends) (Peer, error) {
	e.Timeout = cmp.Or(e.Timeout, limits.Exchange.Here())
	ctx, cancel := context.WithTimeoutCause(ctx, e.Timeout, fmt.Errorf("rdma: the exchange with the peer took more than "+
		"%v: %w", e.Timeout, syscall.ETIMEDOUT))
	defer cancel()
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		_ = conn.SetDeadline(time.Unix(1, 0)) // wakes a blocked read or write
	})
	p, err := exchange(ctx, conn, qp, &e)
	if !stop() {
		<-stopped
		if err == nil {
			err = conn.SetDeadline(time.Time{}) // the exchange was complete: conn needs no deadline
		}
	}
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w (%w)", context.Cause(ctx), err)
	}
	return p, err
}

func exchange(ctx context.Context, conn net.Conn, qp *QP, e *Ends) (Peer, error) {
	local, err := e.hello(qp)
	if err != nil {
		return Peer{}, err
	}
	var remote hello
	var p Peer
	err = swap(conn, local, &remote, func() error { return remote.fits(&local) })
	if err == nil {
		p, err = e.connect(ctx, qp, &local, &remote)
	} else if !errors.Is(err, ErrPeer) {
		return Peer{}, err
	}
	var peer verdict
	if err != nil {
		_ = conn.SetDeadline(time.Now().Add(limits.LastWords.Here()))
		_ = swap(conn, verdict{Error: cut(err.Error())}, &peer, nil)
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

func (h *hello) fits(local *hello) error {
	err := h.check()
	if err == nil && local.Addr.Is4() != h.Addr.Is4() {
		err = fmt.Errorf("the address is %v, this end's %v: two families", h.Addr, local.Addr)
	}
	if err != nil {
		err = fmt.Errorf("%w says what cannot be: %w: %w", ErrPeer, err, syscall.EPROTO)
	}
	return err
}

func (e *Ends) hello(qp *QP) (hello, error) {
	limits := &qp.pd.d.Limits
	var psn [4]byte
	_, _ = rand.Read(psn[:]) // never fails
	h := hello{Version: version, QPN: qp.Number, PSN: binary.LittleEndian.Uint32(psn[:]) >> 8, Addr: e.Addr.Unmap(),
		MAC: e.MAC, MTU: cmp.Or(e.MTU, limits.MTU), Reads: e.Reads}
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

func (e *Ends) connect(ctx context.Context, qp *QP, local, remote *hello) (Peer, error) {
	p := Path{QPN: qp.Number, RemoteQPN: remote.QPN, SendPSN: local.PSN, RecvPSN: remote.PSN, Local: local.Addr,
		Remote: remote.Addr, MAC: remote.MAC, MTU: min(local.MTU, remote.MTU), Timeout: 16 + uint8(limits.Doublings()),
		Retries: 7, RNR: 7, RNRTimer: 12,
		Reads: min(local.Reads, remote.Reads), ReadDepth: local.Reads}
	if e.Path != nil {
		e.Path(&p)
	}
	peer := Peer{Path: p}
	if remote.MR != nil {
		peer.MR = *remote.MR
	}
	return peer, qp.Connect(ctx, p)
}

// swap sends local as a line, and at the same time, as conn may buffer nothing, reads the peer's line into remote. Then
// it calls check, if that is not nil.
func swap(conn net.Conn, local, remote any, check func() error) error {
	line, err := json.Marshal(local)
	if err != nil {
		return err
	}
	sent := make(chan error, 1)
	go func() {
		_, err := conn.Write(append(line, '\n'))
		sent <- err
	}()
	err = readLine(conn, remote)
	if err == nil && check != nil {
		err = check()
	}
	if err != nil {
		// The peer may not read our line: the write gets a deadline.
		_ = conn.SetWriteDeadline(time.Now().Add(limits.LastWords.Here()))
	}
	wrote := <-sent
	if err == nil && wrote != nil {
		err = fmt.Errorf("rdma: to the peer: %w", wrote)
	}
	return err
}

func readLine(conn io.Reader, v any) error {
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

func cut(s string) string { return s[:min(len(s), maxReason)] }

// Dial connects to an address by TCP, and runs Exchange over the connection. The caller closes the connection; after an
// error Dial has closed it.
func Dial(ctx context.Context, address string, qp *QP, e Ends) (net.Conn, Peer, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, Peer{}, err
	}
	return over(ctx, conn, qp, e)
}

// Accept accepts one connection of l, and runs Exchange over it. Closing l ends the wait for the connection; ctx
// applies only to Exchange. The caller closes the connection; after an error Accept has closed it.
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
