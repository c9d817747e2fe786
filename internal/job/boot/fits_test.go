package boot

import (
	"errors"
	"strings"
	"testing"

	guestimages "vnic.dev/vnic/guest-images"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/testkit"
)

func TestFilesThatDoNotFitAreRefusedWithWhatWouldDo(t *testing.T) {
	const mb, image = uint64(1 << 20), uint64(13 << 20)
	for _, c := range []struct {
		nic           string
		memory, files uint64
		want          string // "": they fit
	}{
		{"virtio", 512, 120, ""},
		{"virtio", 512, 150, "150 MB of files, and with 512 MB of RAM a guest has room for 129: --memory 576M or more"},
		{"virtio", 192, 20, ""},
		{"virtio", 192, 40, "--memory 236M or more"},
		{"gve", 512, 162, ""},
		{"gve", 192, 52, "--memory 202M or more"},
		{"virtio", 4096, 1300, "--memory 4138M or more"},
		{"virtio", 8192, 2600, "2034 MB is the most that QEMU loads"},
		{"virtio", 8192, 1 << 42, "is the most that QEMU loads"},
	} {
		o := Options{NIC: c.nic, Memory: c.memory * mb, GPUMemory: 256 * mb}
		err := o.checkFits(c.files*mb, image)
		if c.want == "" {
			testkit.OK(t, err)
			continue
		}
		testkit.ErrorIs(t, err, guestimages.ErrTooMuch)
		if use := new(UseError); !errors.As(err, &use) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// The --memory that the error proposes is enough.
func TestMemoryThatIsSaidToDoDoes(t *testing.T) {
	for _, driver := range []string{lab.DriverNode, lab.DriverVNICGPU} {
		for files := uint64(30 << 20); files < 1<<31-1<<26; files += 37 << 20 {
			o := Options{NIC: "gve", GPUDriver: driver, Memory: 192 << 20, GPUMemory: 64 << 20}
			for n := 0; ; n++ {
				err := o.checkFits(files, 13<<20)
				if err == nil {
					break
				}
				_, after, ok := strings.Cut(err.Error(), "--memory ")
				size, _, _ := strings.Cut(after, " ")
				memory, perr := lab.ParseBytes(size)
				if !ok || perr != nil || n > 0 {
					t.Fatalf("%d MB, again: %v", files>>20, err)
				}
				o.Memory = memory
			}
		}
	}
}
