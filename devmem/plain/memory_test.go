package plain

import (
	"fmt"
	"syscall"
	"testing"

	"vnic.dev/vnic/internal/devmemtest"
	"vnic.dev/vnic/internal/testkit"
)

// piece is a devmem.Buffer.
type piece struct {
	gpu       int
	off, size uint64
}

func (p piece) GPU() int       { return p.gpu }
func (p piece) Offset() uint64 { return p.off }
func (p piece) Size() uint64   { return p.size }
func (p piece) Close() error   { return nil }

func TestMemory(t *testing.T) {
	for _, plain := range []bool{false, true} {
		for _, c := range devmemtest.MemoryCases() {
			t.Run(fmt.Sprintf("%s/%v", c.Name, plain), func(t *testing.T) {
				all := make([]byte, 2*devmemtest.MemorySize)
				m := MapMemory(func(gpu int, off, size uint64) ([]byte, error) {
					if n := uint64(len(all)); off > n || size > n-off {
						return nil, fmt.Errorf("%#x of gpu %d: %w", off, gpu, syscall.EFAULT)
					}
					size = min(size, 64<<10-off%(64<<10)) // as if it were contiguous up to the next multiple of 64 KiB only
					return all[off : off+size : off+size], nil
				})
				if plain {
					g := testkit.Must(NewGPU(uint64(len(all))))(t)
					defer func() { testkit.OK(t, g.Close()) }()
					m, all = NewMemory(g, g), g.Bytes()
				}
				w := &devmemtest.MemoryWorld{Memory: m, Other: piece{1, 0, 4096}}
				for i := range w.Buffers {
					off := uint64(i) * devmemtest.MemorySize
					w.Buffers[i] = piece{0, off, devmemtest.MemorySize}
					w.Contents[i] = devmemtest.Bytes(all[off : off+devmemtest.MemorySize])
				}
				c.Run(t, w)
			})
		}
	}
}
