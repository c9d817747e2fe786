package block

import (
	"errors"
	"math"
	"syscall"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func TestCheck(t *testing.T) {
	info := Info{Size: 1 << 20, BlockSize: 512, MaxTransfer: 64 << 10, MaxDepth: 8}
	const mem = 128 << 10
	for _, c := range []struct {
		op   Op
		want error
	}{
		{Op{Len: 512}, nil},
		{Op{Len: 64 << 10, Off: 1<<20 - 64<<10, Mem: mem - 64<<10, Write: true}, nil},
		{Op{}, syscall.EINVAL},
		{Op{Len: 64<<10 + 512}, syscall.EINVAL},
		{Op{Len: 511}, syscall.EINVAL},
		{Op{Len: 512, Off: 1}, syscall.EINVAL},
		{Op{Len: 1024, Off: 1<<20 - 512}, syscall.EIO},
		{Op{Len: 512, Off: 1 << 20, Write: true}, syscall.ENOSPC},
		{Op{Len: 512, Off: math.MaxUint64 &^ 511}, syscall.EIO},
		{Op{Len: 512, Mem: mem - 511}, syscall.EFAULT},
		{Op{Len: 512, Mem: math.MaxUint64}, syscall.EFAULT},
	} {
		if err := info.Check(c.op, mem); !errors.Is(err, c.want) || c.want == nil && err != nil {
			t.Errorf("%+v: %v, and not %v", c.op, err, c.want)
		}
	}
	info.ReadOnly, info.BlockSize = true, 1
	testkit.OK(t, info.Check(Op{Len: 1, Off: 7}, mem))
	testkit.ErrorIs(t, info.Check(Op{Len: 1, Write: true}, mem), syscall.EROFS)
}

func TestOpError(t *testing.T) {
	err := error(&OpError{Op: Op{Off: 4096, Len: 512}, Status: "media error 0x281", Errno: syscall.EIO})
	testkit.ErrorIs(t, err, syscall.EIO)
	testkit.ErrorSays(t, err, "read of 512 bytes at 4096: media error 0x281")
}
