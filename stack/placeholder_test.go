package stack

import (
	"testing"

	"gvisor.dev/gvisor/pkg/buffer"

	"vnic.dev/vnic/internal/testkit"
)

func TestGhostsHaveNoBytes(t *testing.T) {
	testkit.OK(t, errPlaceholder)
	g := &placeholder{writeSize}
	var b buffer.Buffer
	defer b.Release()
	n, err := b.WriteFromReader(g, int64(g.Len()))
	if n != writeSize || b.Size() != writeSize || g.Len() != 0 || err != nil {
		t.Errorf("%d bytes of %d, %d left, %v", n, b.Size(), g.Len(), err)
	}
	memory, views := 0, b.AsViewList()
	for v := views.Front(); v != nil; v = v.Next() {
		memory += v.Capacity()
	}
	if memory < 1 || memory > 512 {
		t.Errorf("%d bytes of memory stand behind %d of payload", memory, writeSize)
	}
}
