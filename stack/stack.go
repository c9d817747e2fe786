// Package stack implements package devmem with gVisor netstack over a NIC with header split: a TCP stack that carries
// payload it cannot read.
package stack

import (
	"errors"

	"vnic.dev/vnic/devmem"
)

// New starts a stack.
func New() (devmem.Device, error) { return nil, errors.New("stack: not there yet") }
