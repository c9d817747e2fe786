package gpumem

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"vnic.dev/vnic/dma"
)

// Invariant: gpumem: GPU memory cannot shrink or grow, and is allocated.
func TestGPUMemoryIsSealedAndWhole(t *testing.T) {
	files := dma.NewFiles()
	noLeak(t, files)
	g := newGPU(t, files, 3, 1<<20)
	if g.ID() != 3 || g.Size() != 1<<20 || g.File().GPU() != 3 || g.Region().Size() != 1<<20 {
		t.Fatalf("%d, %d bytes, file of GPU %d", g.ID(), g.Size(), g.File().GPU())
	}
	for _, size := range []int64{0, 1<<20 - 1, 1<<20 + 1} {
		wantErr(t, fmt.Sprint("truncate to ", size), unix.Ftruncate(g.FD(), size), syscall.EPERM)
	}
	wantErr(t, "truncate to its size, as QEMU does", unix.Ftruncate(g.FD(), 1<<20), nil)
	wantErr(t, "another seal", errOf(unix.FcntlInt(uintptr(g.FD()), unix.F_ADD_SEALS, unix.F_SEAL_WRITE)), syscall.EPERM)
	if seals, err := unix.FcntlInt(uintptr(g.FD()), unix.F_GET_SEALS, 0); err != nil {
		t.Error(err)
	} else if seals&unix.F_SEAL_EXEC != 0 { // Linux 6.3 and newer
		wantErr(t, "made a program", unix.Fchmod(g.FD(), 0o777), syscall.EPERM)
	}
	var st unix.Stat_t
	if err := unix.Fstat(g.FD(), &st); err != nil || st.Blocks*512 < 1<<20 {
		t.Errorf("%d bytes are allocated, %v", st.Blocks*512, err)
	}
	link, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", g.FD()))
	if err != nil || !strings.Contains(link, "vnic-gpu3") {
		t.Errorf("it is called %q, %v", link, err)
	}
}

func TestBadGPUs(t *testing.T) {
	files := dma.NewFiles()
	noLeak(t, files)
	for _, tc := range []struct {
		id   int
		size uint64
		want error
		text string
	}{
		{-1, 4096, syscall.EINVAL, "GPU -1"},
		{dma.MaxGPUs, 4096, syscall.EINVAL, "0 to 63"},
		{0, 0, syscall.EINVAL, "multiple of 4096"},
		{0, 4097, syscall.EINVAL, "multiple of 4096"},
		{0, 1 << 63, syscall.EINVAL, "multiple of 4096"},
		{0, 1 << 50, syscall.ENOSPC, "no memory for 1.0 PiB"},
	} {
		_, err := NewGPU(files, tc.id, tc.size, Options{})
		if !errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.text) {
			t.Errorf("GPU %d of %d: %v", tc.id, tc.size, err)
		}
	}
}

func TestAllocateSaysHowMuch(t *testing.T) {
	err := allocate(-1, 3<<30)
	if !errors.Is(err, syscall.EBADF) || !strings.Contains(err.Error(), "no memory for 3.0 GiB after 0 bytes of it") {
		t.Fatal(err)
	}
}
