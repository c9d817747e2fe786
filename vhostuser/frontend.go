package vhostuser

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/peer"
)

// DefaultTimeout is how long a Frontend waits for an answer by default. NewFrontend multiplies it by limits.Slow, the
// factor for slow machines.
const DefaultTimeout = time.Duration(limits.Frontend)

// Frontend is the end of vhost-user that owns the memory, like QEMU, for a Go process. Any goroutine may call
// its methods; requests go one after another. An error closes the connection, unless it is ErrRefused, or the
// Frontend has not begun to send the request, for example because of a bad argument.
type Frontend struct {
	mu       sync.Mutex // one request at a time
	conn     conn
	msg      message
	timeout  time.Duration
	broken   error // the error that closed the connection
	features uint64
	protocol ProtocolFeatures // acked
	queues   int
	table    []MemRegion // of the last SET_MEM_TABLE, with duplicated descriptors
}

// NewFrontend returns a Frontend on sock, which it owns.
func NewFrontend(sock *net.UnixConn) *Frontend {
	return &Frontend{conn: newConn(sock), timeout: limits.Frontend.Here()}
}

// SetTimeout sets how long each later request waits to be sent, and then again for its answer; 0 is for ever.
func (f *Frontend) SetTimeout(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.timeout = d
}

// Close closes the connection, also while a request waits.
func (f *Frontend) Close() error {
	err := f.conn.sock.Close() // not under mu, which the waiting request holds
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail(net.ErrClosed)
	return err
}

// fail closes the connection for err. The caller holds mu.
func (f *Frontend) fail(err error) {
	if f.broken != nil {
		return
	}
	f.broken = err
	_ = f.conn.sock.Close()
	closeTable(f.table)
	f.table = nil
}

// Features returns the features that Negotiate has negotiated, 0 before.
func (f *Frontend) Features() (features uint64, protocol ProtocolFeatures) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.features, f.protocol
}

// command sends a request without a reply of its own. If REPLY_ACK was negotiated, it waits for the acknowledgement.
func (f *Frontend) command(r Request, body []byte, fds ...int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.commandLocked(r, body, fds...)
}

func (f *Frontend) commandLocked(r Request, body []byte, fds ...int) error {
	if f.protocol&ProtocolReplyAck == 0 {
		return f.sendLocked(Header{r, Version, uint32(len(body))}, body, fds)
	}
	reply, err := f.exchange(Header{r, Version | FlagNeedReply, uint32(len(body))}, body, fds, u64Len)
	if err != nil {
		return err
	}
	if n := le.Uint64(reply); n != 0 {
		return fmt.Errorf("%v: answer %d: %w", r, n, ErrRefused)
	}
	return nil
}

// query sends a request whose reply has size bytes. The caller holds mu; the reply is valid until it releases
// mu.
func (f *Frontend) query(r Request, body []byte, size uint32) ([]byte, error) {
	return f.exchange(Header{r, Version, uint32(len(body))}, body, nil, size)
}

func (f *Frontend) queryU64(r Request) (uint64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	b, err := f.query(r, nil, u64Len)
	if err != nil {
		return 0, err
	}
	return le.Uint64(b), nil
}

func (f *Frontend) exchange(h Header, body []byte, fds []int, size uint32) ([]byte, error) {
	if err := f.sendLocked(h, body, fds); err != nil {
		return nil, err
	}
	if err := f.receiveLocked(func(r *Header) error { return checkReply(&h, r, size) }); err != nil {
		return nil, fmt.Errorf("%v: answer: %w", h.Request, err)
	}
	if h.Request == GetConfig && f.msg.Size == 0 {
		return nil, fmt.Errorf("%v: %w", h.Request, ErrRefused)
	}
	return f.msg.body, nil
}

// checkReply checks r, the header of the answer to h.
func checkReply(h, r *Header, size uint32) error {
	switch {
	case r.Flags&FlagVersion != Version || r.Flags&FlagReply == 0:
		return fmt.Errorf("flags %v: %w", r.Flags, ErrBadMessage)
	case r.Request != h.Request:
		return fmt.Errorf("to %v: %w", r.Request, ErrBadMessage)
	case r.Size != size && !(r.Request == GetConfig && r.Size == 0): // GET_CONFIG: an empty payload is an error
		return fmt.Errorf("payload of %d bytes, not %d: %w", r.Size, size, ErrBadMessage)
	}
	return nil
}

func (f *Frontend) sendLocked(h Header, body []byte, fds []int) error {
	if f.broken != nil {
		return fmt.Errorf("%v: %w", h.Request, f.broken)
	}
	f.setDeadline()
	if err := f.conn.send(h, body, fds); err != nil {
		f.fail(err)
		return fmt.Errorf("%v: %w", h.Request, err)
	}
	return nil
}

// receiveLocked receives a message into f.msg, and closes descriptors that come with it.
func (f *Frontend) receiveLocked(check func(*Header) error) error {
	if f.broken != nil {
		return f.broken
	}
	defer f.msg.fds.Close()
	f.setDeadline()
	if err := f.conn.receive(&f.msg, check); err != nil {
		f.fail(err)
		return err
	}
	return nil
}

func (f *Frontend) setDeadline() {
	var t time.Time
	if f.timeout > 0 {
		t = time.Now().Add(f.timeout)
	}
	_ = f.conn.sock.SetDeadline(t) // on a closed socket the next read or write fails
}

// Send sends any message unchecked, for tests of backends.
func (f *Frontend) Send(h Header, body []byte, fds []int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sendLocked(h, body, fds)
}

// Receive receives any message that is no longer than the longest SET_CONFIG, for tests of backends.
func (f *Frontend) Receive() (h Header, body []byte, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.receiveLocked(func(*Header) error { return nil }); err != nil {
		return Header{}, nil, err
	}
	return f.msg.Header, append([]byte(nil), f.msg.body...), nil
}

// Negotiate negotiates features (of the device and its rings) and protocol features, in QEMU's order. It
// returns the requested features that the backend offers; if protocol is not 0, it requests FeatureProtocol too.
func (f *Frontend) Negotiate(features, protocol uint64) (gotF, gotP uint64, err error) {
	if protocol != 0 {
		features |= FeatureProtocol
	}
	have, err := f.queryU64(GetFeatures)
	if err != nil {
		return 0, 0, err
	}
	gotF, queues := have&features, uint64(1)
	if gotF&FeatureProtocol != 0 {
		if gotP, err = f.negotiateProtocol(protocol); err != nil {
			return 0, 0, err
		}
		if ProtocolFeatures(gotP)&ProtocolMQ != 0 {
			if queues, err = f.queryU64(GetQueueNum); err != nil {
				return 0, 0, err
			}
		}
	}
	if err := f.command(SetOwner, nil); err != nil {
		return 0, 0, err
	}
	if err := f.command(SetFeatures, le.AppendUint64(nil, gotF)); err != nil {
		return 0, 0, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.features, f.queues = gotF, int(min(queues, MaxVrings))
	return gotF, gotP, nil
}

func (f *Frontend) negotiateProtocol(want uint64) (got uint64, err error) {
	have, err := f.queryU64(GetProtocolFeatures)
	if err != nil {
		return 0, err
	}
	got = have & want
	if err := f.command(SetProtocolFeatures, le.AppendUint64(nil, got)); err != nil {
		return 0, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.protocol = ProtocolFeatures(got)
	return got, nil
}

// Queues returns the backend's answer to GET_QUEUE_NUM in Negotiate, at most MaxVrings, or 1 without MQ. Before
// Negotiate it returns 0.
func (f *Frontend) Queues() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.queues
}

// SetMTU sends the host's MTU to the backend.
func (f *Frontend) SetMTU(mtu uint16) error {
	return f.command(NetSetMTU, le.AppendUint64(nil, uint64(mtu)))
}

// SetStatus sets the virtio device status.
func (f *Frontend) SetStatus(s uint8) error {
	return f.command(SetStatus, le.AppendUint64(nil, uint64(s)))
}

// GetStatus reads the virtio device status.
func (f *Frontend) GetStatus() (uint8, error) {
	s, err := f.queryU64(GetStatus)
	return uint8(s), err
}

// ResetDevice puts the device into its initial state.
func (f *Frontend) ResetDevice() error { return f.command(ResetDevice, nil) }

// SendRARP asks the backend to announce mac.
func (f *Frontend) SendRARP(mac [6]byte) error {
	return f.command(SendRARP, append(mac[:], 0, 0))
}

// GetConfig fills b, at most MaxConfig bytes, from the configuration space at off.
func (f *Frontend) GetConfig(off uint32, b []byte) error {
	body, err := configBody(off, b)
	if err != nil {
		return fmt.Errorf("GET_CONFIG: %w", err)
	}
	clear(body[configHeadLen:])
	f.mu.Lock()
	defer f.mu.Unlock()
	reply, err := f.query(GetConfig, body, uint32(len(body)))
	if err != nil {
		return err
	}
	copy(b, reply[configHeadLen:])
	return nil
}

// SetConfig writes b, at most MaxConfig bytes, to the configuration space at off.
func (f *Frontend) SetConfig(off uint32, b []byte) error {
	body, err := configBody(off, b)
	if err != nil {
		return fmt.Errorf("SET_CONFIG: %w", err)
	}
	return f.command(SetConfig, body)
}

var errTooLong = errors.New("more than fits into a message")

func configBody(off uint32, b []byte) ([]byte, error) {
	if len(b) > MaxConfig {
		return nil, fmt.Errorf("%d bytes: %w", len(b), errTooLong)
	}
	return append(peer.Append(nil, configHead{Offset: off, Size: uint32(len(b))}), b...), nil
}
