package broker

import (
	"context"
	"encoding/binary"
	"net"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/peer"
	"vnic.dev/vnic/internal/scm"
)

// The types of columns of the table of requests.
type (
	when       int
	descriptor int
	pace       int
)

const (
	always when = iota
	beforeSeal

	fdNone descriptor = iota
	fdMay
	fdMust

	atOnce pace = iota
	slow
)

// request is the client's part of a row: the request's number. Q and A are the types of the request's and the answer's
// body.
type request[Q, A any] struct{ op uint32 }

type entry struct {
	name       string
	when       when
	descriptor descriptor
	pace       pace
	size       int
	decode     func(body []byte) (task, error)
}

// task carries out a request whose body has been decoded, and returns the answer's body.
type task func(s *server, ctx context.Context, c *call) ([]byte, error)

// call has the descriptors of a request and of its answer.
type call struct {
	fds *scm.FDs // of the request; a handler takes the ones that it keeps; nil: a slow request
	out net.Conn // its descriptor goes with the answer, and then it is closed; nil: none
}

// table has the rows, by request number; maxRequest is the length of the longest request, in bytes with its header. The
// initialization of this package's variables sets both.
var (
	table      []entry
	maxRequest int
)

// row adds a request to the table; the request's number is the index there.
func row[Q, A any](name string, w when, d descriptor, p pace, handle handler[Q, A]) request[Q, A] {
	bind := func(body []byte) (task, error) {
		q, err := decode[Q](body)
		return func(s *server, ctx context.Context, c *call) ([]byte, error) {
			a, err := handle(s, ctx, c, q)
			if err != nil {
				return nil, err
			}
			if b := peer.Append(nil, a); len(b) <= maxBody {
				return b, nil
			}
			return nil, unix.E2BIG // only a list of addresses can be so long
		}, err
	}
	size := binary.Size(*new(Q))
	table, maxRequest = append(table, entry{name, w, d, p, size, bind}), max(maxRequest, headerLen+size)
	return request[Q, A]{uint32(len(table) - 1)}
}

type handler[Q, A any] func(s *server, ctx context.Context, c *call, q Q) (A, error)

func plain[Q, A any](f func(*server, Q) (A, error)) handler[Q, A] {
	return func(s *server, _ context.Context, _ *call, q Q) (A, error) { return f(s, q) }
}

func socket[Q any, C net.Conn](f func(*server, context.Context, Q) (C, error)) handler[Q, none] {
	return func(s *server, ctx context.Context, c *call, q Q) (none, error) {
		conn, err := f(s, ctx, q)
		if err == nil {
			c.out = conn
		}
		return none{}, err
	}
}

func (e *entry) admits(sealed bool, fds int) error {
	switch {
	case e.when == beforeSeal && sealed:
		return unix.EPERM
	case fds == 0 && e.descriptor == fdMust, fds > 0 && e.descriptor == fdNone, fds > 1:
		return unix.EBADF
	}
	return nil
}

func (r request[Q, A]) message(id uint32, q Q) []byte {
	return peer.Append(peer.Append(nil, requestHeader{r.op, id}), q)
}

// ask sends a request, with the descriptors fds, and waits for the answer until ctx ends or the broker has ended. The
// caller owns fd, the answer's descriptor; -1: none.
func (r request[Q, A]) ask(ctx context.Context, k *Client, q Q, fds ...int) (a A, fd int, err error) {
	got, err := k.ask(ctx, func(id uint32) []byte { return r.message(id, q) }, fds)
	if err == nil {
		a, err = decode[A](got.body)
	}
	return a, got.fd, err
}

// quick is ask, with the timeout limits.Broker, for a request of pace atOnce with an answer that has no descriptor.
func (r request[Q, A]) quick(k *Client, q Q, fds ...int) (A, error) {
	ctx, cancel := soon()
	defer cancel()
	a, _, err := r.ask(ctx, k, q, fds...)
	return a, err
}
