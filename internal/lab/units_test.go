package lab_test

import (
	"testing"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/testkit"
)

func TestSizesAreShownInOneWay(t *testing.T) {
	for n, want := range map[uint64]string{0: "0", 1: "1", 1023: "1023", 1024: "1K", 1025: "1.1K", 1536: "1.5K",
		64 << 20: "64M", 5000 << 40: "5000T", 1<<64 - 1: "16777216.0T",
		1536 << 10: "1536K", 99999 << 10: "97.7M", 68448928: "65.3M", 10619872: "10.2M", 1<<40 + 1: "1.1T"} {
		testkit.Equal(t, want, lab.ShowBytes(n), want)
	}
}
