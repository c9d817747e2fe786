package qemu

import (
	"testing"
	"vnic.dev/vnic/internal/testkit"
)

func TestAccelIsChosenByTrying(t *testing.T) {
	r := fetched(t)
	t.Setenv("VNIC_GUEST", must(program()))
	accel, why, err := ChooseAccel(t.Context(), r)
	testkit.OK(t, err)
	t.Log(accel, why)
	if (accel == AccelTCG) == (why == "KVM") {
		t.Errorf("%s: %s", accel, why)
	}
	again, _, err := ChooseAccel(t.Context(), r)
	if err != nil || again != accel {
		t.Errorf("asked again: %s, %v", again, err)
	}
}
