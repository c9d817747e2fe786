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
	for name, g := range map[string]interface {
		io.Reader
		Len() int
	}{"thin": &thinPlaceholder{writeSize}, "thick": &thickPlaceholder{writeSize}} {
		t.Run(name, func(t *testing.T) {
			var b buffer.Buffer
			defer b.Release()
			if n, err := b.WriteFromReader(g, int64(g.Len())); n != writeSize || b.Size() != writeSize || g.Len() != 0 ||
				err != nil {
				t.Errorf("%d bytes of %d, %d left, %v", n, b.Size(), g.Len(), err)
			}
		})
	}
	if n := testing.AllocsPerRun(100, func() {
		var b buffer.Buffer
		b.WriteFromReader(&thinPlaceholder{writeSize}, 1)
		b.Release()
	}); n > 2 {
		t.Errorf("a thin placeholder allocates %v times", n)
	}
}
