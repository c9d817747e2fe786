package stack

import (
	"io"
	"testing"

	"gvisor.dev/gvisor/pkg/buffer"
)

// The netstack of go.mod takes thin placeholders; one that does not is served by thick ones.
func TestGhostsHaveNoBytes(t *testing.T) {
	if !thinWorks {
		t.Error("this netstack wants thick placeholders: a send allocates and clears as many bytes")
	}
	type placeholder interface {
		io.Reader
		Len() int
	}
	for name, c := range map[string]struct {
		placeholder
		least, most int // bytes of memory behind it
	}{
		"thin":  {&thinPlaceholder{writeSize}, 1, 512},
		"thick": {&thickPlaceholder{writeSize}, writeSize, 2 * writeSize}, // what a thin one saves is seen here
	} {
		t.Run(name, func(t *testing.T) {
			var b buffer.Buffer
			defer b.Release()
			if n, err := b.WriteFromReader(c, int64(c.Len())); n != writeSize || b.Size() != writeSize || c.Len() != 0 ||
				err != nil {
				t.Errorf("%d bytes of %d, %d left, %v", n, b.Size(), c.Len(), err)
			}
			memory, views := 0, b.AsViewList()
			for v := views.Front(); v != nil; v = v.Next() {
				memory += v.Capacity()
			}
			if memory < c.least || memory > c.most {
				t.Errorf("%d bytes of memory stand behind %d of payload, want %d to %d", memory, writeSize, c.least, c.most)
			}
		})
	}
}
