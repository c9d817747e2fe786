package devmem_test

import (
	"syscall"
	"testing"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/testkit"
)

func TestTypesOfElements(t *testing.T) {
	for typ, want := range map[devmem.Type]struct {
		name string
		size uint64
	}{
		devmem.Int32: {"int32", 4}, devmem.Float32: {"float", 4}, devmem.BFloat16: {"bfloat16", 2}, 0: {"unknown", 0},
		devmem.BFloat16 + 1: {"unknown", 0},
	} {
		testkit.Equal(t, "name", typ.String(), want.name)
		testkit.Equal(t, want.name, typ.Size(), want.size)
		if want.size == 0 {
			testkit.ErrorIs(t, typ.Check(0, 0, 1), syscall.EINVAL)
			continue
		}
		testkit.OK(t, typ.Check(3*want.size, want.size, 1<<60))
		testkit.ErrorIs(t, typ.Check(want.size/2, 0, 1), syscall.EINVAL)
		testkit.ErrorIs(t, typ.Check(0, want.size+1, 1), syscall.EINVAL)
		testkit.ErrorIs(t, typ.Check(0, 0, 1<<60+1), syscall.EFAULT)
	}
}
