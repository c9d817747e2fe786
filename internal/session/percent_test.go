package session

import (
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func TestShareHasFewDigits(t *testing.T) {
	for share, want := range map[float64]string{0: "0 %", 512.0 / (1 << 20): "0.049 %", 1e-9: "<0.001 %",
		0.0000123: "0.0012 %",
		0.003906:  "0.39 %", 0.09: "9.0 %", 0.0816: "8.2 %", 0.97877: "97.9 %", 1: "100.0 %"} {
		testkit.Equal(t, want, Percent(share), want)
	}
}
