package qemu

import (
	"errors"
	"fmt"
)

// What callers branch on. Each reaches them inside a *Missing, which also says what to do.
var (
	ErrNoQEMU    = errors.New("no usable QEMU")
	ErrNoKernel  = errors.New("no guest kernel")
	ErrNoApt     = errors.New("apt-get or dpkg-deb not found")
	ErrNoMirror  = errors.New("no Debian mirror known")
	ErrNoKeyring = errors.New("no Debian archive keyring")
	ErrNoNetwork = errors.New("package mirror not reachable")
	ErrNoSpace   = errors.New("not enough space")
	ErrNoCache   = errors.New("no cache directory")
	ErrOffline   = errors.New("not in the cache, and offline was asked for")
)

// Missing says that this machine lacks something, and what its owner can do (the command's exit status 3).
type Missing struct {
	What string // what is missing or unusable
	Fix  string // what to do
	Err  error  // one of the sentinels above, or wraps one
}

func (m *Missing) Error() string { return fmt.Sprintf("%s: %v: %s", m.What, m.Err, m.Fix) }

// Unwrap gives the sentinel.
func (m *Missing) Unwrap() error { return m.Err }
