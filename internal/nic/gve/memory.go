package gve

import (
	"encoding/binary"
	"fmt"
	"io"

	"vnic.dev/vnic/dma"
)

// Registers, admin queue commands and the structures to which these point are big endian (gve_register.h,
// gve_adminq.h). Doorbells in BAR2, descriptors and completions are little endian.
var (
	be = binary.BigEndian
	le = binary.LittleEndian
)

// maxPieces is the most segments of one buffer: 16383 bytes, the most that a descriptor can describe, touch 5
// pages at most, and package vfiouser maps whole pages only.
const maxPieces = (rxMaxLen+4096-2)/4096 + 1

// memory reads and writes guest memory, for one goroutine at a time. Addresses are translated for each copy.
type memory struct {
	space  *dma.Space
	copier *dma.Copier
	segs   []dma.Segment
}

func newMemory(space *dma.Space) *memory { return &memory{space: space, copier: dma.NewCopier()} }

func (m *memory) read(iova uint64, b []byte) error { return m.move(iova, b, dma.Read) }

func (m *memory) write(iova uint64, b []byte) error { return m.move(iova, b, dma.Write) }

func (m *memory) move(iova uint64, b []byte, a dma.Access) error {
	tok := m.space.Enter()
	defer m.space.Leave(tok)
	segs, err := m.space.Translate(m.segs[:0], iova, uint64(len(b)), a)
	if err != nil {
		return err
	}
	m.segs = segs
	var n int
	if a == dma.Read {
		n, err = m.copier.Read(b, segs)
	} else {
		n, err = m.copier.Write(segs, b)
	}
	if err == nil && n < len(b) {
		err = fmt.Errorf("%v of %d bytes at %#x: %w", a, len(b), iova, io.ErrUnexpectedEOF)
	}
	return err
}

// has returns an error unless the device could write n bytes at iova now.
func (m *memory) has(iova, n uint64) error {
	tok := m.space.Enter()
	defer m.space.Leave(tok)
	_, err := m.space.Translate(m.segs[:0], iova, n, dma.Write)
	return err
}
