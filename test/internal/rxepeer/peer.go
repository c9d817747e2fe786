package rxepeer

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"time"

	"vnic.dev/vnic/internal/machine"
)

// Patience is how long a request may take, for Poll and Async in addition to their parameter wait.
const Patience = time.Minute

// version is the version of the protocol (tools/rdma-peer.c).
const version = 1

// maxLine bounds an answer, in bytes.
const maxLine = 16 << 10

// Error is the error with which rdma-peer answered a request.
type Error struct {
	What  string // the call, or the part of the request, that failed
	Errno syscall.Errno
}

func (e *Error) Error() string { return "rdma-peer: " + e.What + ": " + e.Errno.Error() }

// Unwrap returns the errno, for errors.Is.
func (e *Error) Unwrap() error { return e.Errno }

// ErrAnswer means that an answer does not fit the request, or names another version of the protocol.
var ErrAnswer = errors.New("rdma-peer: not an answer")

// Peer is a connection to rdma-peer in a guest.
type Peer struct {
	Kernel  string           // uname -r
	Device  string           // of the RDMA device, such as rxe0
	MAC     net.HardwareAddr // of the device's network interface
	PortMTU int              // most bytes of payload in a packet of the port
	Guest   *machine.Guest   // the guest that Boot has booted; nil in a Peer that New returns

	conn   net.Conn
	in     *bufio.Reader
	broken error // the error after which the connection cannot be used; nil: none
}

// New makes a Peer, which owns conn, a connection to rdma-peer. If New returns an error, conn is closed.
func New(conn net.Conn) (*Peer, error) {
	p := &Peer{conn: conn, in: bufio.NewReaderSize(conn, maxLine)}
	w, err := p.ask(0, "hello", 5, "hello")
	if err == nil && w.int(0) != version {
		err = fmt.Errorf("%w: version %s of the protocol, and not %d", ErrAnswer, w.words[0], version)
	}
	if err == nil {
		p.Kernel, p.Device, p.PortMTU = w.words[1], w.words[2], int(w.int(4))
		if p.MAC, err = net.ParseMAC(w.words[3]); err == nil {
			err = w.err
		}
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return p, nil
}

// Close asks the program to end, unless an earlier request got no answer, and closes the connection.
func (p *Peer) Close() error {
	var err error
	if p.broken == nil { // otherwise the call that failed has returned the error
		err = p.do("quit")
	}
	return errors.Join(err, p.conn.Close())
}

// answer has the words of an answer after the first one. Its methods set err if a word is not what they read.
type answer struct {
	words []string
	err   error
}

func (a *answer) int(i int) int64 {
	n, err := strconv.ParseInt(a.words[i], 10, 64)
	if err != nil {
		a.err = fmt.Errorf("%w: %q is no number", ErrAnswer, a.words[i])
	}
	return n
}

func (a *answer) uint(i, bits int) uint64 {
	n, err := strconv.ParseUint(a.words[i], 10, bits)
	if err != nil {
		a.err = fmt.Errorf("%w: %q is no number of %d bits", ErrAnswer, a.words[i], bits)
	}
	return n
}

// ask sends a request and returns its answer, or, as an error, an answer that is an error. The answer's first word must
// be kind, followed by at least n words; to poll and async the answer may also be "none", and the result then has no
// words. The program may wait as long as wait for a completion or an event.
func (p *Peer) ask(wait time.Duration, kind string, n int, request ...any) (*answer, error) {
	if p.broken != nil {
		return nil, p.broken
	}
	line := fmt.Sprintln(request...)
	raw, err := p.exchange(line, time.Now().Add(wait+Patience))
	if err != nil {
		// The answer may still come, and would then look like the next one.
		p.broken = fmt.Errorf("rdma-peer: %s: %w", strings.TrimSpace(line), err)
		return nil, p.broken
	}
	if text, ok := strings.CutPrefix(raw, "error "); ok {
		return nil, parseError(text)
	}
	words := strings.Fields(raw)
	if raw == "none" && (kind == completion || kind == event) {
		return &answer{}, nil
	}
	if len(words) < n+1 || words[0] != kind {
		return nil, fmt.Errorf("%w: %.100q, to %q", ErrAnswer, raw, strings.TrimSpace(line))
	}
	return &answer{words: words[1:]}, nil
}

// First words of some answers.
const (
	done       = "ok"
	completion = "wc"
	event      = "async"
)

func (p *Peer) exchange(line string, deadline time.Time) (string, error) {
	if err := p.conn.SetDeadline(deadline); err != nil {
		return "", err
	}
	if _, err := io.WriteString(p.conn, line); err != nil {
		return "", err
	}
	raw, err := p.in.ReadSlice('\n')
	return strings.TrimSpace(string(raw)), err
}

// parseError returns the error in "WHAT: ERRNO TEXT", or ErrAnswer if s is not such a text.
func parseError(s string) error {
	i := strings.LastIndex(s, ": ")
	if i < 0 {
		return fmt.Errorf("%w: error %.100q", ErrAnswer, s)
	}
	number, _, _ := strings.Cut(s[i+2:], " ")
	n, err := strconv.ParseUint(number, 10, 16)
	if err != nil || n == 0 {
		return fmt.Errorf("%w: error %.100q", ErrAnswer, s)
	}
	return &Error{What: s[:i], Errno: syscall.Errno(n)}
}

// do sends a request to which the program answers "ok".
func (p *Peer) do(request ...any) error {
	_, err := p.ask(0, done, 0, request...)
	return err
}

func gid(a netip.Addr) string { return fmt.Sprintf("%x", a.As16()) }

func (a *answer) gid(i int) netip.Addr {
	b, err := hex.DecodeString(a.words[i])
	if err != nil || len(b) != 16 {
		a.err = fmt.Errorf("%w: %q is no GID", ErrAnswer, a.words[i])
		return netip.Addr{}
	}
	return netip.AddrFrom16([16]byte(b)).Unmap()
}
