package gve

import (
	"errors"
	"fmt"
	"syscall"
)

// status is the result of a command (gve_adminq.h, enum gve_adminq_statuses).
type status uint32

const (
	statusPassed             status = 1
	statusAlreadyExists      status = 0xfffffff1
	statusFailedPrecondition status = 0xfffffff5
	statusInternal           status = 0xfffffff6
	statusInvalidArgument    status = 0xfffffff7
	statusNotFound           status = 0xfffffff8
	statusResourceExhausted  status = 0xfffffffc
	statusUnimplemented      status = 0xfffffffe
)

var statusNames = map[status]string{
	statusPassed: "passed", statusAlreadyExists: "already exists", statusFailedPrecondition: "failed precondition",
	statusInternal: "internal error", statusInvalidArgument: "invalid argument", statusNotFound: "not found",
	statusResourceExhausted: "resource exhausted", statusUnimplemented: "unimplemented",
}

// Error implements error.
func (s status) Error() string {
	if name, ok := statusNames[s]; ok {
		return name
	}
	return fmt.Sprintf("status %#x", uint32(s))
}

// statusOf returns the status for a command's error; nil: statusPassed.
func statusOf(err error) status {
	var s status
	switch {
	case err == nil:
		return statusPassed
	case errors.As(err, &s):
		return s
	case errors.Is(err, syscall.EEXIST):
		return statusAlreadyExists
	case errors.Is(err, syscall.ENOENT):
		return statusNotFound
	case errors.Is(err, syscall.ENOSPC):
		return statusResourceExhausted
	case errors.Is(err, syscall.EOPNOTSUPP):
		return statusUnimplemented
	}
	return statusInvalidArgument // other errors, such as EINVAL and missing memory
}
