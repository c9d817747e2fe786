package gpudriver

import (
	"encoding/binary"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

// The numbers of the driver's calls contain the sizes of its structs (_IOC_SIZE).
func TestStructsHaveTheDriversSizes(t *testing.T) {
	stats := struct {
		ID uint32
		RegionStats
	}{}
	for request, arg := range map[uint32]any{getInfo: Info{}, regionStats: stats, poison: Poison{}} {
		testkit.Equal(t, "bytes", binary.Size(arg), int(request>>16&0x3fff))
	}
}
