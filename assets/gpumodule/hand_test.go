package gpumodule

import (
	"os"
	"testing"

	"vnic.dev/vnic/assets"
)

func TestByHand(t *testing.T) {
	rel := os.Getenv("HAND_RELEASE")
	if rel == "" {
		t.Skip()
	}
	p, err := Make(t.Context(), Options{Kernel: assets.Kernel{Version: rel, Suite: os.Getenv("HAND_SUITE")},
		Source: os.DirFS("../../guest-images/vnicgpu"), Note: t.Logf,
		Options: assets.Options{Progress: func(p assets.Progress) {
			if p.Done == 0 {
				t.Log(p)
			}
		}}})
	t.Log(p, err)
}
