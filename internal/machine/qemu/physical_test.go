package qemu

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/testkit"
)

// Files are adjacent in the guest's physical memory, but for a hole below 4 GiB.
func TestPhysicalMemory(t *testing.T) {
	const m = 1 << 20
	for want, sizes := range map[string][]uint64{
		"0+512": {512}, "0+512 512+64": {512, 64}, "0+2815": {2815},
		"0+2048 4096+768@2048": {2816}, "0+1024 1024+1024 4096+1024@1024 5120+64": {1024, 2048, 64},
		"0+2048 4096+2048": {2048, 2048},
	} {
		var files []Extent
		for _, n := range sizes {
			files = append(files, Extent{Size: n * m})
		}
		var words []string
		for _, x := range physical(files) {
			w := fmt.Sprintf("%d+%d", x.Addr/m, x.Size/m)
			if x.Off != 0 {
				w += fmt.Sprint("@", x.Off/m)
			}
			words = append(words, w)
		}
		testkit.Equal(t, fmt.Sprint("memory of ", sizes), strings.Join(words, " "), want)
	}
}

func TestArgumentsOfAnIOMMU(t *testing.T) {
	for _, on := range []bool{false, true} {
		conf := Config{QEMU: assets.Binary{Args: []string{"qemu"}}, Kernel: assets.Kernel{Image: "/k"}, IOMMU: on,
			Netdevs: []Netdev{{Path: "/n"}}}
		testkit.OK(t, conf.complete())
		args, _ := arguments(&conf, AccelTCG, made(t))
		i := slices.IndexFunc(args, func(a string) bool { return strings.HasPrefix(a, "intel-iommu,") })
		testkit.Equal(t, "there is one", i > 0, on)
		kernel := args[slices.Index(args, "-append")+1]
		testkit.Equal(t, kernel, strings.Contains(kernel, "intel_iommu=on iommu.passthrough=0"), on)
		first := slices.Index(args, "-device")
		testkit.Equal(t, "it is the first device", first+1 == i, on)
	}
}
