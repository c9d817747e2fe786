package plain

import (
	"fmt"
	"syscall"
	"testing"

	"vnic.dev/vnic/devmem/devmemtest"
)

// part is a devmem.Buffer.
type part struct {
	gpu       int
	off, size uint64
}

func (p part) GPU() int       { return p.gpu }
func (p part) Offset() uint64 { return p.off }
func (p part) Size() uint64   { return p.size }
func (p part) Close() error   { return nil }

func TestMemory(t *testing.T) {
	for _, c := range devmemtest.MemoryCases() {
		t.Run(c.Name, func(t *testing.T) {
			all := make([]byte, 2*devmemtest.MemorySize)
			m := MapMemory(func(gpu int, off, size uint64) ([]byte, error) {
				if n := uint64(len(all)); off > n || size > n-off {
					return nil, fmt.Errorf("%#x of gpu %d: %w", off, gpu, syscall.EFAULT)
				}
				return all[off : off+size : off+size], nil
			})
			w := &devmemtest.MemoryWorld{Memory: m, Other: part{1, 0, 4096}}
			for i := range w.Buffers {
				off := uint64(i) * devmemtest.MemorySize
				w.Buffers[i] = part{0, off, devmemtest.MemorySize}
				w.Contents[i] = devmemtest.Bytes(all[off : off+devmemtest.MemorySize])
			}
			c.Run(t, w)
		})
	}
}
