package rdma

import (
	"cmp"
	"errors"
	"fmt"
	"syscall"

	"vnic.dev/vnic/internal/control"
)

// ErrReset is returned if the port was reset after Open. It wraps ESTALE.
var ErrReset = fmt.Errorf("the NIC's port was reset, and nothing of RDMA is left: close this device, open it again "+
	"and connect anew: %w", syscall.ESTALE)

// ErrFull is returned if a queue, or its CQ, has no room for the work requests to post. It wraps ENOSPC.
var ErrFull = fmt.Errorf("the queue, or its CQ, is full: poll for completions first: %w", syscall.ENOSPC)

// WCError is the error of a failed completion.
type WCError struct{ WC WC }

var meaning = map[control.WCStatus]string{
	control.WCLocalLength: "local length error: the message is longer than the memory that was posted for it, or than a " +
		"message may be: post as much as the peer sends",
	control.WCLocalProtection: "local protection error: a piece of local memory is not inside of an MR of the queue " +
		"pair's PD, or that MR lacks LocalWrite: check key, address and length, and that the MR is not closed",
	control.WCFlushed: "flushed: the queue pair had failed before it was this one's turn: the first completion that is " +
		"not flushed, or QP.Status, has the cause; close the queue pair and connect another",
	control.WCRemoteInvalid: "invalid request, says the peer: as when a SEND is longer than the memory that the peer " +
		"posted for it",
	control.WCRemoteAccess: "access error, says the peer: no MR of its queue pair's PD has this key, range and access: " +
		"check what the peer has offered, and that its MR is not closed",
	control.WCRemoteOperation: "operation error, says the peer: it could not reach its own memory",
	control.WCRetriesExceeded: "no answer: the peer has closed its queue pair, has ended or was reset, or all packets " +
		"are lost on their way: see to the peer and the path (Path.Timeout, Path.Retries), and connect another queue pair",
	control.WCRNRExceeded: "receiver not ready: the peer had no receive posted in time: post receives there first, or " +
		"let Path.RNR be 7",
	control.WCGeneral: "general error of the NIC",
	control.WCPagesUnavailable: "a page on demand was not to be had: nobody answers requests for pages, or the memory " +
		"is gone: see PageServer",
}

// Error says which work request failed and why, and for most statuses what to do.
func (e *WCError) Error() string {
	what := cmp.Or(meaning[e.WC.Status], fmt.Sprintf("status %d", e.WC.Status))
	return fmt.Sprintf("queue pair %d: work request %#x (%s): %s", e.WC.QPN, e.WC.ID, opName(e.WC.Op), what)
}

var opNames = map[control.WROp]string{control.WRWrite: "WRITE", control.WRWriteImm: "WRITE with immediate",
	control.WRRead: "READ", control.WRSend: "SEND", control.WRSendImm: "SEND with immediate", control.WRRecv: "receive"}

func opName(op control.WROp) string { return cmp.Or(opNames[op], fmt.Sprintf("operation %d", op)) }

// Err returns nil for a successful completion, or else a *WCError.
func Err(w WC) error {
	if w.Status == control.WCSuccess {
		return nil
	}
	return &WCError{w}
}

func full(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EAGAIN) {
		return fmt.Errorf("%w (the NIC: %w)", ErrFull, err)
	}
	return err
}
